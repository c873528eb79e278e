# SPDX-License-Identifier: Apache-2.0
"""The version and the commit of the code that runs: what records, run folders and reports say of their origin."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

from inlay import __version__

BUILT = "_commit.txt"  # written into wheels and source archives when they are built


def version_text() -> str:
    """`inlay 0.1.0 (dfb2feedd98b)`, with `+` where files have changed since."""
    found = commit()
    return f"inlay {__version__}" + (f" ({found[:12]}{'+' if found.endswith('+') else ''})" if found else "")


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit, with `+` where files have changed since; an installed copy has that of its build, if it had one."""
    here = Path(__file__).parent
    if (here / BUILT).is_file():
        return (here / BUILT).read_text(encoding="ascii").strip()
    try:
        _git(here, "ls-files", "--error-unmatch", "errors.py")  # else it is somebody else's repository around us
        head, change = _git(here, "rev-parse", "HEAD"), _git(here, "status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if change else "")


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
