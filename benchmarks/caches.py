# SPDX-License-Identifier: Apache-2.0
"""How fast `inlay cache pack` packs latents on one core, what it saves and what it loses, and that its memory is flat.

    python benchmarks/caches.py VIDEOS --made DIR --out benchmarks/caches_cpu_DATE.json [--clips 12] [--copies 4]

The cache is one of musubi-tuner, for the model that has as many channels as `mini`, made in DIR by `mini` from the
first 81 frames of the videos at 448x256 (a second run uses what is there). To be timed, each clip is mirrored to the
area of 896x512 and stands there several times. Seconds are those of the CPU, so that what else the machine does counts
little; each precision is a process of its own.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import multiprocessing
import os
import platform
import pstats
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.caches import MakeConfig, PackConfig, make_cache, pack_cache, unpack_cache, verify_cache
from inlay.tokenizer import Tokenizer

FORMATS = {16: "musubi-wan", 32: "musubi-hv15", 48: "musubi-wan"}  # channels -> a cache with latents of as many
PARTS = {  # what the profile is summed up by -> function
    "SHA-256 of files": "file_digest",
    "read the latents": "latents",
    "choose the cells": "choose_together",
    "code the mask": "pack_mask",
    "code the values": "pack_values",
    "the rest of the file": "rest",
}


def make(videos: Path, made: Path, clips: int) -> None:
    """Real latents."""
    made.mkdir(parents=True, exist_ok=True)
    chosen = made.parent / f"{made.name}.txt"
    chosen.write_text("".join(f"{path.resolve()}\n" for path in sorted(videos.glob("*.mp4"))[:clips]))
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    config = MakeConfig(format=FORMATS[tokenizer.spec.channels], frames=81, size="448x256")
    make_cache(str(chosen), str(made), config, tokenizer)


def multiply(made: Path, root: Path, copies: int) -> None:
    """As they are to see what is lost; to be timed, mirrored to four times the area, each several times."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    for place in ("once", "cache"):
        (root / place).mkdir()
    for path in sorted(made.glob("*.safetensors")):
        shutil.copyfile(path, root / "once" / path.name)
        with safe_open(path, "pt") as file:
            (name,), metadata = file.keys(), file.metadata()
            z_CTHW = file.get_tensor(name)
        rows = torch.cat([z_CTHW, z_CTHW.flip(2)], dim=2)
        large = torch.cat([rows, rows.flip(3)], dim=3).contiguous()
        _, T, H, W = large.shape
        for copy in range(copies):
            key = f"latents_{T}x{H}x{W}_{name.rpartition('_')[2]}"
            save_file({key: large}, root / "cache" / f"copy{copy}_{path.name}", metadata=metadata)


def pack(root: str, precision: str, profiled: bool) -> dict[str, Any]:
    """In a process of its own: one core, its CPU time, and its memory on the way."""
    torch.set_num_threads(1)
    memory: dict[int, int] = {}
    begun: list[float] = []  # when listing and calibration, which happen once, were done

    def watch(files: int, total: int, size: int) -> None:
        memory[files] = peak_kb()
        begun.append(time.process_time())

    out = f"{root}/{precision}{'-profiled' * profiled}"
    pack_cache(f"{root}/once", f"{out}-warm", PackConfig(precision=precision))  # what is imported once does not count
    profile = cProfile.Profile(time.process_time)
    if profiled:
        profile.enable()
    start, wall = time.process_time(), time.perf_counter()
    done = pack_cache(f"{root}/cache", out, PackConfig(precision=precision), watch=watch)
    seconds, wall = time.process_time() - begun[0], time.perf_counter() - wall
    before = begun[0] - start
    profile.disable()
    if profiled:
        return {"shares_of_cpu_seconds": shares(profile, seconds)}
    third = max(n for n in memory if n <= max(memory) // 3)
    checked = verify_cache(out, against=f"{root}/cache")
    start = time.process_time()
    unpack_cache(out, f"{out}-back")
    unpacking = time.process_time() - start
    return {
        "precision": precision,
        "mb_per_cpu_second": round(done.latent_bytes / 1e6 / seconds, 1),
        "cpu_seconds": round(seconds, 2),
        "calibration_cpu_seconds": round(before, 2),
        "wall_seconds": round(wall, 2),
        "unpack_mb_per_cpu_second": round(done.latent_bytes / 1e6 / unpacking, 1),
        "keep_rate": round(done.dataset.keep_rate, 4),
        "tau_in_deviations": done.dataset.recipe["tau"],
        "latent_ratio": round(done.latent_bytes / done.dataset.bytes, 2),
        "relative_error": round(checked.loss.mean, 4),
        "worst_relative_error": round(checked.loss.worst, 4),
        "problems": len(checked.problems),
        "peak_mb_after_a_third": memory[third] // 1024,
        "peak_mb_at_the_end": memory[max(memory)] // 1024,
    }


def lose(root: str, losses: list[float]) -> list[dict[str, Any]]:
    """What is saved when more or less may be lost; decibels are of two clips, decoded before and after."""
    torch.set_num_threads(1)
    tokenizer, rows = Tokenizer.from_pretrained("mini", device="cpu"), []
    for loss in losses:
        out = f"{root}/loss{loss}"
        done = pack_cache(f"{root}/once", out, PackConfig(loss=loss))
        checked = verify_cache(out, against=f"{root}/once", tokenizer=tokenizer, decoded=2)
        rows.append(
            {
                "loss_asked_for": loss,
                "tau_in_deviations": done.dataset.recipe["tau"],
                "keep_rate": round(done.dataset.keep_rate, 4),
                "latent_ratio": round(done.latent_bytes / done.dataset.bytes, 2),
                "relative_error": round(checked.loss.mean, 4),
                "worst_relative_error": round(checked.loss.worst, 4),
                "decoded_psnr": round(sum(checked.psnr) / len(checked.psnr), 2),
                "clips_decoded": len(checked.psnr),
            }
        )
        print(rows[-1], flush=True)
    return rows


def peak_kb() -> int:
    """Of this program: what `getrusage` says begins with the memory of whoever started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def shares(profile: cProfile.Profile, seconds: float) -> dict[str, float]:
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    named: dict[str, float] = {}
    for (file, _, name), (_, _, _, cumulative, _) in found.items():
        part = next((part for part, function in PARTS.items() if function == name), None)
        if (name == "pack" and file.endswith("chunk.py")) or name in ("pack_q8", "pack_quick"):
            part = "code the values"
        if part is not None:
            named[part] = max(named.get(part, 0.0), cumulative)
    return {part: round(t / seconds, 3) for part, t in sorted(named.items(), key=lambda item: -item[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("videos", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--made", type=Path, required=True)
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--losses", type=float, nargs="*", default=[0.05, 0.1, 0.2])
    parser.add_argument("--copies", type=int, default=4)
    given = parser.parse_args()
    rows, spawn = [], multiprocessing.get_context("spawn")
    make(given.videos, given.made, given.clips)
    with tempfile.TemporaryDirectory() as folder:
        multiply(given.made, Path(folder), given.copies)
        for precision in ("q8-quick", "q8", "bf16", "fp32"):
            row: dict[str, Any] = {}
            for profiled in (False, True):
                with spawn.Pool(1) as pool:
                    row |= pool.apply(pack, (folder, precision, profiled))
            rows.append(row)
            print(row, flush=True)
        with spawn.Pool(1) as pool:
            losses = pool.apply(lose, (folder, given.losses))
        files = sorted(Path(folder, "cache").iterdir())
        record = {
            "command": f"python benchmarks/caches.py VIDEOS --made DIR --clips {given.clips} --copies {given.copies}",
            "cache": f"musubi-tuner, {files[0].stem.rpartition('_')[2]}: latents of mini, up to 81 frames, "
            "timed at four times the area",
            "files": len(files),
            "latent_mb": round(sum(path.stat().st_size for path in files) / 1e6, 1),
            "machine": f"{platform.processor() or platform.machine()}, one thread of {os.cpu_count()} cores, "
            "which others use at the same time",
            "load_average": [round(x, 1) for x in os.getloadavg()],
            "rows": rows,
            "losses": losses,
        }
    given.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
