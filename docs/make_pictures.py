# SPDX-License-Identifier: Apache-2.0
"""The built-in clip in, the pictures of README and docs out: real runs, clips made by code.

python docs/make_pictures.py        # needs the extra plot; writes docs/pictures/ and benchmarks/demo_cpu.json
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from pathlib import Path

import torch

from inlay.app.cli import main
from inlay.video import read_video

DOCS = Path(__file__).parent
FRAMES = (30, 60)  # a still camera, then a moving one


def make() -> None:
    from PIL import Image

    pictures = DOCS / "pictures"
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(["demo", "--out", folder, "--json", "--quiet"])
        if code:
            raise SystemExit(code)
        film = read_video(Path(folder) / "side-by-side.mp4").frames
        strip = torch.cat([film[t] for t in FRAMES], dim=0)
        Image.fromarray(strip.numpy()).save(pictures / "strip.webp", quality=88)
        shutil.copy(Path(folder) / "curve.png", pictures / "curve.png")
    record = json.loads(printed.getvalue())
    for key in ("file", "film", "curve", "clip", "token_file", "decoded"):
        record[key] = Path(record[key]).name  # the folder was a temporary one
    record = {"command": "python docs/make_pictures.py (inlay demo --json)", **record}
    (DOCS.parent / "benchmarks" / "demo_cpu.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    make()
