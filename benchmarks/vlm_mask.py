# SPDX-License-Identifier: Apache-2.0
"""Inlay's last-kept mask beside EVS's own: time, and how far the tokens that are dropped are from those that stay.

    pip download --no-deps -d wheels vllm
    python benchmarks/vlm_mask.py wheels --out benchmarks/vlm_mask_cpu_DATE.json [--device cuda] [--videos DIR]

EVS is taken out of the wheel, which is not installed. Times are of random walks. For the choice, `--videos` has clips
whose latents by `mini`, 2x2 cells merged into a token, stand for the tokens of a vision encoder: their distances are
not those of a language model's tower. A dropped token is compared with the one kept last at its place. Where no video
can be read, `--videos` has the latents that `--save-latents` wrote elsewhere, as .npy files. On a GPU each rule is also
held against its own choice on the CPU, and asked whether it ever waits for the device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.tokenizer import Tokenizer
from inlay.video import read_video
from inlay.vlm import CRITERIA, compute_retention_mask
from inlay.vlm.last_kept import distances

HOMES = ("vllm/multimodal/video_prune/evs.py", "vllm/multimodal/evs.py")
MERGE = 2
Mask = Callable[[Tensor, tuple[int, int, int], int, float], Tensor]


def evs_of(wheels: Path) -> tuple[str, Mask]:
    """EVS's own mask, and the name of the wheel it is from."""
    found = sorted(wheels.glob("vllm-*.whl"))
    if not found:
        sys.exit(f"no wheel of vllm in {wheels}; run: pip download --no-deps -d {wheels} vllm")
    with zipfile.ZipFile(found[-1]) as archive, tempfile.TemporaryDirectory() as folder:
        home = next(home for home in HOMES if home in archive.namelist())
        spec = importlib.util.spec_from_file_location("evs", archive.extract(home, folder))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return "-".join(found[-1].name.split("-")[:2]), module.compute_retention_mask


def rules(evs: Mask) -> dict[str, Mask]:
    def rule(criterion: str) -> Mask:
        return lambda embeds, thw, merge, q: compute_retention_mask(embeds, thw, merge, q, criterion=criterion)

    return {"evs": evs, **{f"last-kept {name}": rule(name) for name in CRITERIA}}


def timed(mask: Mask, embeds: Tensor, thw: tuple[int, int, int], q: float, repeats: int) -> dict[str, Any]:
    cuda = embeds.is_cuda
    seconds = []
    for _ in range(repeats + 2):  # two to warm up
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        before = torch.cuda.memory_allocated() if cuda else 0
        start = time.perf_counter()
        mask(embeds, thw, MERGE, q)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    row = {"ms": round(1e3 * statistics.median(seconds[2:]), 3), "ms_least": round(1e3 * min(seconds[2:]), 3)}
    return row | ({"peak_mb": round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)} if cuda else {})


def waits(mask: Mask, embeds: Tensor, thw: tuple[int, int, int], q: float) -> bool:
    """Whether the host is held up until the GPU has answered."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask(embeds, thw, MERGE, q)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def times(masks: dict[str, Mask], given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for grid, frames in ((grid, frames) for grid in given.grid for frames in given.frames):
        thw = (frames, grid, grid)
        places = (grid // MERGE) ** 2
        walk = torch.randn(frames, places, given.channels, device=given.device).cumsum(0)
        embeds = walk.flatten(0, 1).to(torch.bfloat16)
        for name, mask in masks.items():
            size = {"frames": frames, "tokens_a_frame": places, "channels": given.channels}
            rows.append({"rule": name, **size, **timed(mask, embeds, thw, 0.75, given.repeats)})
            if embeds.is_cuda:
                rows[-1]["waits_for_device"] = waits(mask, embeds, thw, 0.75)
            print(rows[-1], flush=True)
    return rows


def latents_of(given: argparse.Namespace) -> Iterator[Tensor]:
    """[C, T, H, W] of each clip."""
    if saved := sorted(given.videos.glob("*.npy")):
        yield from (torch.from_numpy(np.load(path)).float() for path in saved[: given.clips])
        return
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    for path in sorted(given.videos.glob("*.mp4"))[: given.clips]:
        pixels = read_video(path, size="256x256", frames=given.video_frames).pixels()
        z_CTHW = tokenizer.backbone.encode(pixels[:, :, : 1 + (pixels.shape[2] - 1) // 4 * 4])[0]
        if given.save_latents:
            given.save_latents.mkdir(parents=True, exist_ok=True)
            np.save(given.save_latents / f"{path.stem}.npy", z_CTHW.half().numpy())
        yield z_CTHW


def tokens_of(z_CTHW: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """2x2 cells to a token, in the order and with the grid that a server gives."""
    C, T, H, W = z_CTHW.shape
    blocks = z_CTHW.reshape(C, T, H // MERGE, MERGE, W // MERGE, MERGE).permute(1, 2, 4, 3, 5, 0)
    return blocks.reshape(-1, MERGE * MERGE * C), (T, H, W)


def missed(x_TPD: Tensor, keep_TP: Tensor, criterion: str) -> Tensor:
    """[T, P]: how far each token is from the one kept last at its place; zero where it is kept."""
    table_TSP = distances(x_TPD, CRITERIA[criterion])
    frame_T1 = torch.arange(len(x_TPD), device=x_TPD.device)[:, None]
    last_TP = torch.where(keep_TP, frame_T1, 0).cummax(0).values
    return table_TSP.gather(1, last_TP[:, None]).squeeze(1)


@torch.inference_mode()
def choices(masks: dict[str, Mask], given: argparse.Namespace) -> list[dict[str, Any]]:
    found: dict[tuple[str, float], list[dict[str, float]]] = {}
    for z_CTHW in latents_of(given):
        embeds, thw = tokens_of(z_CTHW.to(given.device))
        x_TPD = embeds.view(thw[0], -1, embeds.shape[1])
        for q in (0.5, 0.75, 0.9):
            kept = {name: mask(embeds, thw, MERGE, q).view(x_TPD.shape[:2]) for name, mask in masks.items()}
            for name, keep_TP in kept.items():
                row = {"shared_with_evs": (keep_TP & kept["evs"]).sum() / keep_TP.sum()}
                if embeds.is_cuda:
                    here = masks[name](embeds.cpu(), thw, MERGE, q).view(x_TPD.shape[:2])
                    row["same_as_on_cpu"] = (here == keep_TP.cpu()).float().mean()
                for criterion in CRITERIA:
                    lost_TP = missed(x_TPD, keep_TP, criterion)
                    row |= {f"{criterion}_mean": lost_TP.mean(), f"{criterion}_largest": lost_TP.amax()}
                found.setdefault((name, q), []).append({label: value.item() for label, value in row.items()})
    rows = []
    for (name, q), values in found.items():
        means = {label: round(statistics.mean(row[label] for row in values), 4) for label in values[0]}
        rows.append({"rule": name, "q": q, "clips": len(values)} | means)
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--frames", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--grid", type=int, nargs="+", default=[24], help="patches a side before the merge")
    parser.add_argument("--channels", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--videos", type=Path, help="a folder of clips, or of their latents")
    parser.add_argument("--save-latents", type=Path, help="a folder; the latents of --videos go there")
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--video-frames", type=int, default=65)
    given = parser.parse_args()
    if given.videos and not any(path.suffix in (".npy", ".mp4") for path in given.videos.glob("*")):
        sys.exit(f"neither .mp4 nor .npy files in {given.videos}")
    torch.manual_seed(0)
    wheel, evs = evs_of(given.wheels)
    masks = rules(evs)
    cuda = given.device.startswith("cuda")
    record: dict[str, Any] = {
        "command": f"python benchmarks/vlm_mask.py wheels --device {given.device} --frames"
        f" {' '.join(map(str, given.frames))} --grid {' '.join(map(str, given.grid))} --channels {given.channels}"
        + f" --videos DIR --clips {given.clips} --video-frames {given.video_frames}"
        * bool(given.videos),
        "evs": wheel,
        "machine": torch.cuda.get_device_name()
        if cuda
        else f"{platform.machine()}, CPU threads: {torch.get_num_threads()}",
        "load_average": [round(x, 1) for x in os.getloadavg()],
        "torch": torch.__version__,
        "times": times(masks, given),
        "choices": [],
    }
    given.out.write_text(json.dumps(record, indent=2) + "\n")
    if given.videos:
        record["choices"] = choices(masks, given)
        given.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
