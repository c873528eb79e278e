# SPDX-License-Identifier: Apache-2.0
"""Write the commit into wheels and source archives, so that an installed copy knows where it comes from."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = "inlay/_commit.txt"  # inlay.origin reads it


class CommitHook(BuildHookInterface):
    """An editable install gets none: there the repository itself is asked."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        found = self._commit()
        if version == "editable" or not found:
            return  # from a source archive: the file lies among the sources already
        self._folder = tempfile.TemporaryDirectory()
        note = Path(self._folder.name) / "commit.txt"
        note.write_text(found + "\n", encoding="ascii")
        build_data["force_include"][str(note)] = FILE if self.target_name == "wheel" else f"src/{FILE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _commit(self) -> str:
        """The commit of the tree, with `+` where it has changes; empty outside a checkout of its own."""
        if not (Path(self.root) / ".git").exists():
            return ""
        try:
            return self._git("rev-parse", "HEAD") + ("+" if self._git("status", "--porcelain") else "")
        except (OSError, subprocess.CalledProcessError):
            return ""

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True, check=True).stdout.strip()
