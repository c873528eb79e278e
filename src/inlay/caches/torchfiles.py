# SPDX-License-Identifier: Apache-2.0
"""Trainers whose caches are torch files: DiffSynth-Studio, SimpleTuner, LTX-2."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.caches.base import CacheFile, CacheFormat, HoleFile, NewClip, file_bytes, files_below, usual_fps
from inlay.caches.holes import DTYPES, CacheError, TensorPlace, torch_contents
from inlay.files import write_atomic

PROMPT_ROWS = 512  # of the text encoder that DiffSynth-Studio's Wan reads
PRECOMPUTED = ".precomputed"


def hole_file(path: Path, whole: bool, find: Any, *, wanted: str) -> HoleFile:
    """The file with the tensor that `find` picks from its contents; `fps` where its contents say so."""
    data = file_bytes(path, whole=whole)
    contents, hole = torch_contents(data)
    place = find(contents)
    if not isinstance(place, TensorPlace):
        raise CacheError(f"holds no {wanted}; is it a cache of another trainer?")
    return HoleFile(data, hole(place), fps=usual_fps(contents.get("fps") if isinstance(contents, dict) else None))


def save(path: Path, contents: Any) -> Path:
    """A torch file, whole or not at all."""
    buffer = io.BytesIO()  # given a file, torch would write that file's name into it
    torch.save(contents, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())
    return path


class DiffSynth(CacheFormat):
    """DiffSynth-Studio, Wan: any .pth below the folder, a tuple (shared, positive, negative) of dictionaries."""

    name, about, models, dtype = "diffsynth", "DiffSynth-Studio, Wan", ("wan-2.1", "wan-2.2"), "BF16"
    needs_text, frame_step = True, 4

    def find(self, root: Path) -> list[Path]:
        return files_below(root, ".pth")

    def open(self, path: Path, *, whole: bool = True) -> CacheFile:
        def find(contents: Any) -> Any:
            ok = isinstance(contents, tuple) and len(contents) == 3 and all(isinstance(c, dict) for c in contents)
            return contents[0].get("input_latents") if ok else None

        return hole_file(path, whole, find, wanted="tuple (shared, positive, negative) with input_latents")

    def write(self, root: Path, number: int, clips: Sequence[NewClip]) -> Path:
        (clip,) = clips
        shared = {"input_latents": clip.z_CTHW[None].to(DTYPES[self.dtype]).contiguous()}
        return save(root / "0" / f"{number}.pth", (shared, {"context": padded(clip.text)}, {}))


def padded(text: Tensor | None) -> Tensor:
    """[1, 512, D] bfloat16: zeros past the prompt."""
    assert text is not None, "this format needs text"
    context = torch.zeros(1, PROMPT_ROWS, text.shape[-1], dtype=torch.bfloat16)
    rows = min(len(text), PROMPT_ROWS)
    context[0, :rows] = text[:rows]
    return context


class SimpleTuner(CacheFormat):
    """SimpleTuner: `{folder of the source}/{SHA-256 of the stem}.pt`, one bare tensor [C, F, H, W]."""

    name, about, dtype, frame_step = "simpletuner", "SimpleTuner, Wan and LTX-Video", "BF16", 8
    models = ("wan-2.1", "wan-2.2", "ltx", "hunyuan-video-1.5")
    takes_text = False

    def find(self, root: Path) -> list[Path]:
        found = files_below(root, ".pt")
        return [] if (root / PRECOMPUTED).is_dir() or is_ltx(root) else found

    def open(self, path: Path, *, whole: bool = True) -> CacheFile:
        def find(contents: Any) -> Any:
            return contents.get("latents") if isinstance(contents, dict) else contents

        return hole_file(path, whole, find, wanted="tensor")

    def write(self, root: Path, number: int, clips: Sequence[NewClip]) -> Path:
        (clip,) = clips
        source = Path(clip.name)
        name = hashlib.sha256(source.name.encode()).hexdigest()
        dtype = torch.float32 if len(clip.z_CTHW) == 128 else DTYPES[self.dtype]  # LTX-Video's are float32
        return save(root / source.parent / f"{name}.pt", clip.z_CTHW.to(dtype).contiguous())


class Ltx(CacheFormat):
    """LTX-2: `.precomputed/latents/{video}.pt`, and the text under the same name below `conditions/`."""

    name, about, models, dtype, frame_step = "ltx", "LTX-2 trainer", ("ltx",), "BF16", 8

    def find(self, root: Path) -> list[Path]:
        base = precomputed(root)
        return files_below(base / "latents", ".pt") if is_ltx(base) else []

    def open(self, path: Path, *, whole: bool = True) -> CacheFile:
        def find(contents: Any) -> Any:
            return contents.get("latents") if isinstance(contents, dict) else None

        return hole_file(path, whole, find, wanted="dictionary with latents")

    def write(self, root: Path, number: int, clips: Sequence[NewClip]) -> Path:
        (clip,) = clips
        z = clip.z_CTHW.to(DTYPES[self.dtype]).contiguous()
        _, T, H, W = z.shape
        base = root / PRECOMPUTED
        if clip.text is not None:
            text = clip.text.bfloat16()
            mask = torch.ones(len(text), dtype=torch.bool)
            conditions = {"video_prompt_embeds": text, "prompt_attention_mask": mask}
            save(base / "conditions" / f"{clip.name}.pt", conditions)
        facts = {"latents": z, "num_frames": T, "height": H, "width": W, "fps": clip.fps}
        return save(base / "latents" / f"{clip.name}.pt", facts)

    def notes(self, root: Path, files: Sequence[Path]) -> list[str]:
        latents, conditions = precomputed(root) / "latents", precomputed(root) / "conditions"
        alone = [p for p in files if not condition_of(p, latents, conditions).exists()]
        if not alone:
            return []
        return [f"{len(alone)} latents have no conditions ({alone[0].name}): the trainer passes over them"]


def precomputed(root: Path) -> Path:
    """The folder of the data set, or the one with the latents itself, as the trainer takes them."""
    return root / PRECOMPUTED if (root / PRECOMPUTED).is_dir() else root


def is_ltx(base: Path) -> bool:
    return (base / "latents").is_dir() and ((base / "conditions").is_dir() or base.name == PRECOMPUTED)


def condition_of(path: Path, latents: Path, conditions: Path) -> Path:
    """The text of a clip; caches of old have latent_X.pt and condition_X.pt."""
    if path.name.startswith("latent_"):
        return conditions / f"condition_{path.stem.removeprefix('latent_')}.pt"
    return conditions / path.relative_to(latents)
