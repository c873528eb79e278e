# SPDX-License-Identifier: Apache-2.0
"""Caches in each trainer's genuine format, written by code of their own: not by the writers of the package.

Each builder makes a folder with `clips` clips and returns the files with latents. Names, keys, axis order and dtype
are those of the trainers: musubi-tuner 30c658c, DiffSynth-Studio fed7b18f, SimpleTuner bc8e6ab77, LTX-2 400fd31,
FastVideo 2f3d40740.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def latents(number: int, channels: int, *, slots: int = 5, rows: int = 8, columns: int = 12) -> Tensor:
    """[C, T, H, W] float32: a still picture with a part that moves and a little noise, as latents have."""
    seeded = torch.Generator().manual_seed(number)
    still = torch.randn(channels, 1, rows, columns, generator=seeded)
    z = still.repeat(1, slots, 1, 1) + 0.02 * torch.randn(channels, slots, rows, columns, generator=seeded)
    z[:, 1:, 2:5, 3:8] += torch.randn(channels, slots - 1, 3, 5, generator=seeded)
    return z


def text(number: int, rows: int = 7, width: int = 32) -> Tensor:
    return torch.randn(rows + number, width, generator=torch.Generator().manual_seed(1000 + number))


def musubi_wan(root: Path, clips: int = 3, *, image: bool = False) -> list[Path]:
    """`image`: what image-to-video caches hold besides."""
    root.mkdir(parents=True, exist_ok=True)
    made = []
    for n in range(clips):
        z = latents(n, 16).bfloat16()
        tensors = {"latents_5x8x12_bfloat16": z}
        if image:
            tensors["clip_bfloat16"] = torch.randn(257, 16).bfloat16()
            tensors["latents_image_5x8x12_bfloat16"] = torch.cat(
                [torch.ones(4, 5, 8, 12), latents(n + 50, 16)]
            ).bfloat16()
        path = root / f"clip_{n}_00000-017_0096x0064_wan.safetensors"
        about = {"architecture": "wan", "width": "96", "height": "64", "format_version": "1.0.1", "frame_count": "17"}
        save_file(tensors, path, metadata=about)
        words = {"architecture": "wan", "caption1": f"caption {n}", "format_version": "1.0.1"}
        save_file({"varlen_t5_bfloat16": text(n).bfloat16()}, root / f"clip_{n}_wan_te.safetensors", metadata=words)
        made.append(path)
    return made


def musubi_hv(root: Path, clips: int = 3) -> list[Path]:
    root.mkdir(parents=True, exist_ok=True)
    made = []
    for n in range(clips):
        path = root / f"clip_{n}_00000-017_0096x0064_hv.safetensors"
        about = {"architecture": "hunyuan_video", "width": "96", "height": "64", "format_version": "1.0.1"}
        save_file({"latents_5x8x12_float16": (2 * latents(n, 16)).half()}, path, metadata=about)
        words = {"architecture": "hunyuan_video", "caption1": f"caption {n}", "format_version": "1.0.1"}
        te = {
            "llm_float16": text(n).half(),
            "llm_mask": torch.ones(7 + n, dtype=torch.int64),
            "clipL_float16": torch.randn(8).half(),
        }
        save_file(te, root / f"clip_{n}_hv_te.safetensors", metadata=words)
        made.append(path)
    return made


def diffsynth(root: Path, clips: int = 3) -> list[Path]:
    made = []
    for n in range(clips):
        context = torch.zeros(1, 512, 32)
        context[0, : 7 + n] = text(n)
        path = root / str(n % 2) / f"{n}.pth"
        path.parent.mkdir(parents=True, exist_ok=True)
        shared = {"height": 64, "input_latents": latents(n, 16)[None].bfloat16(), "cfg_scale": 1}
        torch.save((shared, {"context": context.bfloat16()}, {}), path)
        made.append(path)
    return sorted(made)


def simpletuner(root: Path, clips: int = 3) -> list[Path]:
    made = []
    for n in range(clips):
        path = root / "walks" / f"{hashlib.sha256(f'clip_{n}'.encode()).hexdigest()}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(latents(n, 16).bfloat16(), path)
        made.append(path)
    return sorted(made)


def ltx(root: Path, clips: int = 3) -> list[Path]:
    made = []
    for n in range(clips):
        path = root / ".precomputed" / "latents" / "walks" / f"clip_{n}.pt"
        beside = root / ".precomputed" / "conditions" / "walks" / f"clip_{n}.pt"
        for folder in (path.parent, beside.parent):
            folder.mkdir(parents=True, exist_ok=True)
        z = latents(n, 128).bfloat16()
        torch.save({"latents": z, "num_frames": 5, "height": 8, "width": 12, "fps": 24.0}, path)
        mask = torch.ones(7 + n, dtype=torch.bool)
        torch.save({"video_prompt_embeds": text(n).bfloat16(), "prompt_attention_mask": mask}, beside)
        made.append(path)
    return made


def fastvideo(root: Path, clips: int = 3) -> list[Path]:
    """Two rows a file, one a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tensor = [("bytes", pa.binary()), ("shape", pa.list_(pa.int64())), ("dtype", pa.string())]
    fields = [("id", pa.string())]
    fields += [(f"{name}_{part}", kind) for name in ("vae_latent", "text_embedding") for part, kind in tensor]
    fields += [("file_name", pa.string()), ("caption", pa.string()), ("media_type", pa.string())]
    fields += [("width", pa.int64()), ("height", pa.int64()), ("num_frames", pa.int64())]
    fields += [("duration_sec", pa.float64()), ("fps", pa.float64())]
    rows = []
    for n in range(clips):
        z, words = 2 * latents(n, 16), text(n)
        row = {"id": f"clip_{n}", "file_name": f"clip_{n}.mp4", "caption": f"caption {n}", "media_type": "video"}
        row |= {"width": 96, "height": 64, "num_frames": 5, "duration_sec": 17 / 16, "fps": 16.0}
        for name, value in (("vae_latent", z), ("text_embedding", words)):
            row |= {f"{name}_bytes": value.numpy().tobytes(), f"{name}_shape": list(value.shape)}
            row[f"{name}_dtype"] = "float32"
        rows.append(row)
    made = []
    for number in range(0, clips, 2):
        path = root / "combined" / f"data_{number:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.Table.from_pylist(rows[number : number + 2], schema=pa.schema(fields)), path, row_group_size=1
        )
        made.append(path)
    (root / "map_style_cache").mkdir()
    (root / "map_style_cache" / "file_info.pkl").write_bytes(b"absolute paths")
    return made


BUILDERS: dict[str, Callable[..., list[Path]]] = {
    "musubi-wan": musubi_wan,
    "musubi-hv": musubi_hv,
    "diffsynth": diffsynth,
    "simpletuner": simpletuner,
    "ltx": ltx,
    "fastvideo": fastvideo,
}
