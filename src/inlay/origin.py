# SPDX-License-Identifier: Apache-2.0
"""The commit of the code that runs: what records, run folders and reports say of their origin."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit, with `+` where files have changed since; empty outside a repository of this code."""
    here = Path(__file__).parent
    try:
        _git(here, "ls-files", "--error-unmatch", "errors.py")  # else it is somebody else's repository around us
        head, change = _git(here, "rev-parse", "HEAD"), _git(here, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if change else "")


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
