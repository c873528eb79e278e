# SPDX-License-Identifier: Apache-2.0
"""VMAF, by the ffmpeg that the package imageio-ffmpeg brings."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from inlay.errors import MissingError, VideoError
from inlay.measure.base import Gauge, MeasureConfig


class Folder:
    """A temporary folder that goes when its last holder does."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="inlay-vmaf-"))
        self.close = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class VmafState:
    """Frames wait on disk: the motion feature crosses every cut, so pieces cannot be scored alone."""

    ffmpeg: str
    folder: Folder = field(default_factory=Folder)
    size: tuple[int, int] = (0, 0)


def start(config: MeasureConfig) -> VmafState:
    return VmafState(ffmpeg=find_ffmpeg())


def find_ffmpeg() -> str:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise MissingError("VMAF needs imageio-ffmpeg; run: pip install imageio-ffmpeg") from error
    try:
        program = imageio_ffmpeg.get_ffmpeg_exe()
        listing = subprocess.run([program, "-hide_banner", "-filters"], capture_output=True, text=True, check=False)
    except (RuntimeError, OSError) as error:
        raise MissingError(f"imageio-ffmpeg has no ffmpeg that runs here ({error})") from error
    if " libvmaf " not in listing.stdout:
        raise MissingError(f"{program} was built without libvmaf; run: pip install -U imageio-ffmpeg")
    return program


def update(state: VmafState, reference_THWC: Tensor, other_THWC: Tensor) -> VmafState:
    for name, x_THWC in (("reference", reference_THWC), ("other", other_THWC)):
        with (state.folder.path / name).open("ab") as file:
            for frame_HWC in x_THWC:
                file.write(frame_HWC.cpu().contiguous().numpy().data)
    return replace(state, size=(reference_THWC.shape[2], reference_THWC.shape[1]))


def finish(state: VmafState) -> dict[str, float]:
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{state.size[0]}x{state.size[1]}", "-r", "25"]
    graph = "[0:v]format=yuv420p[a];[1:v]format=yuv420p[b];[a][b]libvmaf=log_fmt=json:log_path=vmaf.json"
    command = [state.ffmpeg, "-hide_banner", "-nostdin", "-loglevel", "error", *raw, "-i", "other", *raw]
    command += ["-i", "reference", "-lavfi", graph, "-f", "null", "-"]
    try:
        done = subprocess.run(command, cwd=state.folder.path, capture_output=True, text=True, check=False)
        log = state.folder.path / "vmaf.json"
        if done.returncode != 0 or not log.exists():
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise VideoError(f"ffmpeg could not compute VMAF (exit {done.returncode}): {last[0]}")
        return {"vmaf": float(json.loads(log.read_text())["pooled_metrics"]["vmaf"]["mean"])}
    finally:
        state.folder.close()


VMAF = Gauge(start=start, update=update, finish=finish)
