# SPDX-License-Identifier: Apache-2.0
"""VMAF, by the ffmpeg that the package imageio-ffmpeg brings."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from torch import Tensor

from inlay.errors import MissingError, VideoError, require
from inlay.measure.base import MeasureConfig


class VmafGauge:
    """Frames wait on disk: the motion feature crosses every cut, so pieces cannot be scored alone."""

    def __init__(self, config: MeasureConfig) -> None:
        self.ffmpeg = find_ffmpeg()
        self.scratch = tempfile.TemporaryDirectory(prefix="inlay-vmaf-", ignore_cleanup_errors=True)
        self.folder, self.size = Path(self.scratch.name), (0, 0)

    def update(self, reference_THWC: Tensor, other_THWC: Tensor) -> None:
        for name, x_THWC in (("reference", reference_THWC), ("other", other_THWC)):
            with (self.folder / name).open("ab") as file:
                for frame_HWC in x_THWC:
                    file.write(frame_HWC.cpu().contiguous().numpy().data)
        self.size = (reference_THWC.shape[2], reference_THWC.shape[1])

    def finish(self) -> dict[str, float]:
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{self.size[0]}x{self.size[1]}", "-r", "25"]
        graph = "[0:v]format=yuv420p[a];[1:v]format=yuv420p[b];[a][b]libvmaf=log_fmt=json:log_path=vmaf.json"
        command = [self.ffmpeg, "-hide_banner", "-nostdin", "-loglevel", "error", *raw, "-i", "other", *raw]
        command += ["-i", "reference", "-lavfi", graph, "-f", "null", "-"]
        with self.scratch:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
            log = self.folder / "vmaf.json"
            if done.returncode != 0 or not log.exists():
                last = done.stderr.strip().splitlines()[-1:] or ["no message"]
                raise VideoError(f"ffmpeg could not compute VMAF (exit {done.returncode}): {last[0]}")
            return {"vmaf": float(json.loads(log.read_text())["pooled_metrics"]["vmaf"]["mean"])}


def find_ffmpeg() -> str:
    package = require("imageio_ffmpeg", extra="measure")
    try:
        program = package.get_ffmpeg_exe()
        listing = subprocess.run([program, "-hide_banner", "-filters"], capture_output=True, text=True, check=False)
    except (RuntimeError, OSError) as error:
        raise MissingError(f"imageio-ffmpeg has no ffmpeg that runs here ({error})") from error
    if " libvmaf " not in listing.stdout:
        raise MissingError(f"{program} was built without libvmaf; run: pip install -U imageio-ffmpeg")
    return program
