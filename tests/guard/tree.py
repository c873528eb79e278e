# SPDX-License-Identifier: Apache-2.0
"""The repository's own files, for the guards that read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "inlay"
SKIPPED = {".git", ".venv", "demo", "runs", "build", "dist", "__pycache__"}
BINARY = {
    *(".inlay", ".safetensors", ".pt", ".gz", ".woff2"),
    *(".png", ".avif", ".webp", ".jpg", ".gif", ".mp4", ".mkv", ".webm", ".ivf"),
}


def project_files() -> list[Path]:
    """What git keeps or would keep; outside a checkout, everything that is not a build product."""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        found = subprocess.run(command, capture_output=True)
        if found.returncode == 0:
            return [p for name in found.stdout.decode().split("\0") if name and (p := ROOT / name).is_file()]
    return [p for p in ROOT.rglob("*") if p.is_file() and not SKIPPED & set(p.relative_to(ROOT).parts)]


def text_files() -> list[Path]:
    return [p for p in project_files() if p.suffix not in BINARY]
