# SPDX-License-Identifier: Apache-2.0
"""musubi-tuner: `{stem}_{start}-{frames}_{W}x{H}_{arch}.safetensors` beside `{stem}_{arch}_te.safetensors`.

Its reader finds files by their names alone: the size is that of the source, a clip without text is passed over.
Metadata are strings that training does not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from inlay.caches.base import CacheFile, CacheFormat, HoleFile, NewClip, file_bytes, files_below
from inlay.caches.holes import DTYPES, CacheError, safetensors_hole, safetensors_metadata
from inlay.files import atomic

LATENTS = re.compile(r"latents_\d+x\d+x\d+_\w+")  # not latents_image_, latents_control_: those are carried along
ARCHITECTURES = {  # end of the file names -> its full name, model, dtype, whether the trainer wants latents normalised
    "wan": ("wan", ("wan-2.1", "wan-2.2"), "BF16", True),
    "hv": ("hunyuan_video", ("hunyuan-video",), "F16", False),
    "hv15": ("hunyuan_video_1_5", ("hunyuan-video-1.5",), "F16", False),
}
VERSION = "1.0.1"


class Musubi(CacheFormat):
    """Caches of one architecture; others may lie in the same folder, and are then carried along."""

    frame_step, flat = 4, True

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.full_name, self.models, self.dtype, self.normalised = ARCHITECTURES[arch]
        self.name = f"musubi-{arch}"
        self.takes_text = arch == "wan"  # the others have two encoders
        self.about = f"musubi-tuner, {self.full_name}"
        self.file_name = re.compile(rf"(.+)_(\d+)-(\d+)(-\d+)?_(\d+)x(\d+)_{arch}\.safetensors", re.DOTALL)

    def find(self, root: Path) -> list[Path]:
        return [p for p in files_below(root, f"_{self.arch}.safetensors") if self.file_name.fullmatch(p.name)]

    def open(self, path: Path, *, whole: bool = True) -> CacheFile:
        data = file_bytes(path, whole=whole)
        said = safetensors_metadata(data).get("architecture", self.full_name)
        if said != self.full_name:
            raise CacheError(f"says it is of {said!r}, and its name says {self.full_name!r}; rename it")
        return HoleFile(data, safetensors_hole(data, lambda name: LATENTS.fullmatch(name) is not None))

    def write(self, root: Path, number: int, clips: Sequence[NewClip]) -> Path:
        from safetensors.torch import save_file

        (clip,) = clips
        z = (clip.z_CTHW if self.normalised else clip.raw_CTHW).to(DTYPES[self.dtype]).contiguous()
        _, T, H, W = z.shape
        stem = f"{Path(clip.name).name}_00000-{clip.frames:03d}_{clip.width:04d}x{clip.height:04d}"
        metadata = {
            "architecture": self.full_name,
            "width": str(clip.width),
            "height": str(clip.height),
            "format_version": VERSION,
            "frame_count": str(clip.frames),
        }
        path = root / f"{stem}_{self.arch}.safetensors"
        with atomic(path) as part:
            save_file({f"latents_{T}x{H}x{W}_{str(z.dtype).removeprefix('torch.')}": z}, part, metadata=metadata)
        if clip.text is not None and self.takes_text:
            text = clip.text.bfloat16().contiguous()
            words = {"architecture": self.full_name, "caption1": clip.caption, "format_version": VERSION}
            with atomic(root / f"{Path(clip.name).name}_{self.arch}_te.safetensors") as part:
                save_file({"varlen_t5_bfloat16": text}, part, metadata=words)
        return path

    def mixed(self, files: Sequence[Path]) -> str | None:
        """The trainer knows no size but that of the source: clips of one length, and in some way one aspect, meet."""
        sizes: dict[str, set[tuple[int, ...]]] = {}
        for path in files:
            if found := self.file_name.fullmatch(path.name):
                sizes.setdefault(found[3], set()).add(self.open(path, whole=False).facts[0].shape[2:])
        for frames, several in sizes.items():
            if len(several) > 1:
                listed = ", ".join(f"{W}x{H}" for H, W in sorted(several)[:4])
                return (
                    f"clips of {int(frames)} frames have latents of {len(several)} sizes ({listed}), and the trainer "
                    "may put them into one batch, which fails; give a size, or train with batch_size = 1"
                )
        return None

    def notes(self, root: Path, files: Sequence[Path]) -> list[str]:
        found = [(path, self.file_name.fullmatch(path.name)) for path in files]
        alone = [p for p, m in found if m and not p.with_name(f"{m[1]}_{self.arch}_te.safetensors").exists()]
        if not alone:
            return []
        return [f"{len(alone)} clips have no {self.arch}_te file ({alone[0].name}): the trainer passes over them"]
