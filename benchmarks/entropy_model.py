# SPDX-License-Identifier: Apache-2.0
"""How many bits a better entropy model could save: ideal code lengths of several, against the q8 coder's real bits.

    python benchmarks/entropy_model.py --train VIDEO... --test VIDEO... [--backbone mini] --out RECORD.json

Every model gives each number a centre and a width from what a decoder knows at that time: the cells kept around it in
its own slot (left and above) and in the slot before, how old they are, the cell's own last value. Models:

    tables                least squares on the test clip itself and bell curves by how much happens around
    tables, lit           the same with what LIT makes of the slots before as one more neighbour
    network               a small one, trained on other clips, in float: one of integers can only be worse
    network, groups       channels in four groups, each of which sees the ones before
    network, more groups  eight groups, half as wide again
    oracle                a network that is shown all cells around, those to come included: no decoder has them

Nothing is coded: a length is -log2 of what the model gave the number. `seconds_a_clip` are those of the processor, one
thread: to read a chunk with q8, and the network alone, all cells at once. The rule was: build it if it saves 20 % and
takes at most half as long again to read.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inlay.codec import encode_clip
from inlay.container.coder import TABLES
from inlay.container.fit import _cost
from inlay.container.q8 import pack_q8, unpack_q8
from inlay.masking import MaskConfig, keep_mask, keep_rate_of, nearest_tau
from inlay.masking.steps import channel_steps
from inlay.measure.gains import Gains
from inlay.tokenizer import Tokenizer
from inlay.video import read_video
from inlay.video.frames import Video

RING = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
CAUSAL = [(0, 0, -1), (0, -1, 0), (0, -1, 1), (0, -1, -1), *((-1, y, x) for y, x in RING)]
ALL = [*((0, y, x) for y, x in RING if (y, x) != (0, 0)), *((t, y, x) for t in (-1, 1) for y, x in RING)]
HOLD = CAUSAL.index((-1, 0, 0))
CLASSES = 24  # widths that the tables know
BATCH = 1024
MODELS = ("tables", "tables, lit", "network", "network, groups", "network, more groups", "oracle")


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The kept cells of a clip: values, where they are, and LIT's guess from the slots before, where asked for."""

    name: str
    values_NC: Tensor
    mask_THW: np.ndarray
    lit_NC: Tensor


def cells_of(tokenizer: Tokenizer, name: str, z_BCTHW: Tensor, keep: float, *, lit: bool = False) -> Cells:
    tau = 0.0
    if keep < 1:
        tau = nearest_tau(lambda t: keep_rate_of(keep_mask(z_BCTHW, MaskConfig(tau=t))), keep).tau
    keep_BTHW = keep_mask(z_BCTHW, MaskConfig(tau=tau))
    lit_BCTHW = torch.zeros_like(z_BCTHW)
    for t in range(1, z_BCTHW.shape[2] if lit else 0):
        known_BTHW = keep_BTHW[:, : t + 1].clone()
        known_BTHW[:, t] = False
        lit_BCTHW[:, :, t] = tokenizer.fill_cells(z_BCTHW[:, :, : t + 1], known_BTHW, max(tau, 0.1), "lit")[:, :, t]
    chosen = keep_BTHW[0]
    pick = [x[0].permute(1, 2, 3, 0)[chosen] for x in (z_BCTHW, lit_BCTHW)]
    return Cells(name=name, values_NC=pick[0], mask_THW=chosen.numpy(), lit_NC=pick[1])


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Whole numbers of steps, and for each token which others stand around it (the last row is zeros: none)."""

    numbers_NC: Tensor
    lit_NC: Tensor
    around_NP: Tensor
    extra_NE: Tensor  # is there one, how old is it, the log of the step, is this slot 0
    steps_C: Tensor

    def __len__(self) -> int:
        return len(self.around_NP)

    @staticmethod
    def of(cells: Cells, steps_C: Tensor, places: Sequence[tuple[int, int, int]]) -> Tokens:
        numbers_NC = torch.round(cells.values_NC / steps_C)
        around, t = neighbours(cells.mask_THW, places)
        slot = np.append(t, 0)
        there = around < len(t)
        age = np.where(there, np.abs(t[:, None] - slot[around]), 0)
        step = np.full((len(t), 1), math.log(float(steps_C.log().mean().exp())))
        extra = np.concatenate([there, np.minimum(age, 4) / 4, step, (t == 0)[:, None]], axis=1).astype(np.float32)
        return Tokens(
            numbers_NC=torch.cat([numbers_NC, torch.zeros(1, numbers_NC.shape[1])]),
            lit_NC=cells.lit_NC / steps_C,
            around_NP=torch.from_numpy(around),
            extra_NE=torch.from_numpy(extra),
            steps_C=steps_C,
        )

    @staticmethod
    def join(parts: Sequence[Tokens]) -> Tokens:
        around, at, end = [], 0, sum(map(len, parts))
        for part in parts:
            around.append(torch.where(part.around_NP < len(part), part.around_NP + at, end))
            at += len(part)
        numbers = [part.numbers_NC[:-1] for part in parts]
        return Tokens(
            numbers_NC=torch.cat([*numbers, torch.zeros(1, numbers[0].shape[1])]),
            lit_NC=torch.cat([part.lit_NC for part in parts]),
            around_NP=torch.cat(around),
            extra_NE=torch.cat([part.extra_NE for part in parts]),
            steps_C=parts[0].steps_C,
        )


def neighbours(mask_THW: np.ndarray, places: Sequence[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """([N, P] which token stands there, N where none does; [N] slots).

    In the slots up to its own the last token kept there counts, in later ones the next.
    """
    slots, height, width = mask_THW.shape
    t, y, x = mask_THW.nonzero()
    none = len(t)
    fresh = np.full((slots + 2, height + 2, width + 2), none, dtype=np.int64)
    fresh[t + 1, y + 1, x + 1] = np.arange(none)
    last, following = fresh.copy(), fresh.copy()
    for s in range(1, slots + 2):
        last[s] = np.where(fresh[s] < none, fresh[s], last[s - 1])
        following[-1 - s] = np.where(fresh[-1 - s] < none, fresh[-1 - s], following[-s])
    found = [(following if dt > 0 else last)[t + 1 + dt, y + 1 + dy, x + 1 + dx] for dt, dy, dx in places]
    return np.stack(found, axis=1), t


class Network(nn.Module):
    """Centre and log width of each number; logistic, integrated over the rounding."""

    def __init__(self, std_C: Tensor, places: int, *, groups: int = 1, hidden: int = 128) -> None:
        super().__init__()
        channels = len(std_C)
        self.std_C: Tensor
        self.register_buffer("std_C", std_C)
        self.groups = groups
        self.linear = nn.Parameter(torch.zeros(2, places, channels))
        self.enter = nn.Linear(2 * places * (channels + 1) + 2, hidden)
        self.middle = nn.Linear(hidden, hidden)
        self.leave = nn.Linear(hidden, 2 * channels)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)
        if groups > 1:
            group = torch.arange(channels) // (channels // groups)
            self.register_buffer("earlier", (group[None] < torch.arange(groups)[:, None]).float())
            self.own = nn.ModuleList(nn.Linear(2 * channels + hidden, 64) for _ in range(groups))
            self.out = nn.ModuleList(nn.Linear(64, 2 * channels // groups) for _ in range(groups))
            for layer in self.out:
                nn.init.zeros_(layer.weight)

    def forward(self, tokens: Tokens, rows: Tensor) -> Tensor:
        """[n, C] bits."""
        numbers = tokens.numbers_NC[rows]
        around = tokens.numbers_NC[tokens.around_NP[rows]]
        std_C = self.std_C / tokens.steps_C  # in steps
        around, extra = around / std_C, tokens.extra_NE[rows]
        hidden = F.silu(self.enter(torch.cat([_squash(around).flatten(1), extra], dim=1)))
        hidden = hidden + F.silu(self.middle(hidden))
        centre, width = self.leave(hidden).chunk(2, dim=1)
        first = extra[:, -1:, None]
        centre = centre + (around * torch.where(first > 0, self.linear[1], self.linear[0])).sum(1)
        if self.groups > 1:
            error = numbers / std_C - centre
            parts = []
            for seen, enter, leave in zip(self.earlier, self.own, self.out, strict=True):
                shown = torch.cat([_squash(error.detach()[:, None]).view(len(rows), 2, -1) * seen], dim=1).flatten(1)
                parts.append(leave(F.silu(enter(torch.cat([shown, hidden], dim=1)))).chunk(2, dim=1))
            centre = centre + torch.cat([a for a, _ in parts], dim=1)
            width = width + torch.cat([b for _, b in parts], dim=1)
        return logistic_bits(numbers, centre * std_C, 0.4 * std_C * width.clamp(-6, 6).exp() + 1e-3)


def _squash(x: Tensor) -> Tensor:
    """Values kept small, and their sizes as logarithms."""
    return torch.cat([2 * torch.tanh(x / 2), 0.3 * (x.abs() + 0.05).log()], dim=1)


def logistic_bits(numbers: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    away, half = (numbers - centre).abs() / width, 0.5 / width
    share = torch.sigmoid(half - away) - torch.sigmoid(-half - away)
    return -torch.log2(share.clamp_min(0) * (1 - 2.0**-16) + 2.0**-24)


def trained(net: Network, sets: Sequence[Tokens], seconds: float) -> tuple[Network, int]:
    """One network for all steps, taught on the processor for so long."""
    optimiser, began, steps = torch.optim.Adam(net.parameters(), 3e-3), time.process_time(), 0
    while (gone := (time.process_time() - began) / seconds) < 1:
        tokens = sets[steps % len(sets)]
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * min(1, steps / 100) * (0.5 + 0.5 * math.cos(math.pi * gone)) + 1e-5
        loss = net(tokens, torch.randint(0, len(tokens), (BATCH,))).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        steps += 1
    return net, steps


@torch.no_grad()
def network_bits(net: Network, tokens: Tokens) -> float:
    rows = torch.arange(len(tokens)).split(4 * BATCH)
    return sum(float(net(tokens, r).double().sum()) for r in rows) / (len(tokens) * tokens.lit_NC.shape[1])


def table_bits(tokens: Tokens, *, lit: bool) -> float:
    """Least squares by channel over the places, then a bell curve by channel and by how much happens around."""
    numbers = tokens.numbers_NC[:-1].double()
    around = tokens.numbers_NC[tokens.around_NP].double()
    around = torch.cat([around, tokens.lit_NC[:, None].double()], dim=1) if lit else around
    first = tokens.extra_NE[:, -1] > 0
    guess = torch.zeros_like(numbers)
    for rows in (first, ~first):
        for c in range(numbers.shape[1]):
            a = torch.cat([around[rows, :, c], torch.ones(int(rows.sum()), 1).double()], dim=1)
            gram = a.T @ a + 1e-3 * len(a) * torch.eye(a.shape[1]).double()
            guess[rows, c] = a @ torch.linalg.solve(gram, a.T @ numbers[rows, c])
    residual = (numbers - guess.round()).long().numpy()
    size = np.abs(residual) / (np.abs(residual).mean(0) + 0.1)
    size = np.concatenate([size, np.zeros((1, size.shape[1]))])
    near = size[tokens.around_NP.numpy()]  # [N, P, C]
    there = tokens.extra_NE[:, : near.shape[1]].numpy()[:, :, None]
    mean = (near * there).sum(1) / np.maximum(there.sum(1), 1)
    energy = np.log(0.05 + 0.4 * mean + 0.6 * mean.mean(1, keepdims=True))
    edges = np.quantile(energy, np.linspace(0, 1, CLASSES + 1)[1:-1])
    group = np.arange(size.shape[1]) * CLASSES + np.searchsorted(edges, energy)
    best = _cost(residual, group, CLASSES * size.shape[1]).min(axis=1)
    side = math.log2(TABLES) * (best > 0).sum()
    return float(best.sum() + side) / residual.size


def arms_of(std_C: Tensor) -> dict[str, tuple[list[tuple[int, int, int]], Network]]:
    torch.manual_seed(0)
    return {
        "network": (CAUSAL, Network(std_C, len(CAUSAL))),
        "network, groups": (CAUSAL, Network(std_C, len(CAUSAL), groups=4)),
        "network, more groups": (CAUSAL, Network(std_C, len(CAUSAL), groups=8, hidden=192)),
        "oracle": (ALL, Network(std_C, len(ALL))),
    }


def measure(
    train: list[Cells], test: dict[float, list[Cells]], steps: dict[float, Tensor], args: argparse.Namespace
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    present: dict[tuple[float, float], list[float]] = {}
    for step, steps_C in steps.items():
        for keep, clips in test.items():
            packed = [(pack_q8(c.values_NC, c.mask_THW, steps_C), c) for c in clips]
            present[step, keep] = now = [8 * len(data) / c.values_NC.numel() for data, c in packed]
            began = time.process_time()
            for data, c in packed:
                unpack_q8(data, c.mask_THW, len(steps_C))
            spent = (time.process_time() - began) / len(clips)
            rows.append(_row("q8", step, keep, clips, now, now) | {"seconds_a_clip": spent})
            for name, lit in (("tables", False), ("tables, lit", True)):
                if name not in args.models:
                    continue
                found = [table_bits(Tokens.of(c, steps_C, CAUSAL), lit=lit) for c in clips]
                rows.append(_row(name, step, keep, clips, now, found))
    std_C = torch.cat([c.values_NC for c in train]).std(0)
    for name, (places, net) in arms_of(std_C).items():
        if name not in args.models:
            continue
        sets = [Tokens.join([Tokens.of(c, steps_C, places) for c in train]) for steps_C in steps.values()]
        net, done = trained(net, sets, 60 * args.minutes)
        for (step, keep), now in present.items():
            sets = [Tokens.of(c, steps[step], places) for c in test[keep]]
            began = time.process_time()
            found = [network_bits(net, tokens) for tokens in sets]
            spent = (time.process_time() - began) / len(sets)
            row = _row(name, step, keep, test[keep], now, found)
            rows.append(row | {"training_steps": done, "seconds_a_clip": spent})
    return rows


def _row(
    name: str, step: float, keep: float, clips: list[Cells], now: list[float], found: list[float]
) -> dict[str, Any]:
    counts = [c.values_NC.numel() for c in clips]
    total = [sum(b * n for b, n in zip(bits, counts, strict=True)) for bits in (now, found)]
    row = {
        "model": name, "step": step, "keep": keep,
        "bits_per_number": total[1] / sum(counts), "saved": 1 - total[1] / total[0],
        "clips": [c.name for c in clips], "q8_bits": now, "bits": found,
    }  # fmt: skip
    print(name, step, keep, f"{row['bits_per_number']:.3f} bits a number, saved {100 * row['saved']:.1f} %", flush=True)
    return row


def main() -> None:
    args = parse()
    torch.manual_seed(0)
    began, tokenizer = time.perf_counter(), Tokenizer.from_pretrained(args.backbone, device="cpu")
    with torch.no_grad():
        latents = {path: encode_clip(tokenizer, read(path)).z_BCTHW for path in (*args.train, *args.test)}
        gains = gains_of(tokenizer, [latents[path] for path in args.train])
        train = [
            cells_of(tokenizer, p.stem, latents[p], args.keeps[i % len(args.keeps)]) for i, p in enumerate(args.train)
        ]
        test = {
            k: [cells_of(tokenizer, p.stem, latents[p], k, lit="tables, lit" in args.models) for p in args.test]
            for k in args.keeps
        }
    cells = sum(len(c.values_NC) for c in train)
    print(f"{cells:,} cells to train on, {time.perf_counter() - began:.0f} s", flush=True)
    steps = {step: torch.tensor(channel_steps(gains, step)) for step in args.steps}
    record = {
        "what": "ideal code lengths of entropy models against the bits of the q8 coder (its value sections)",
        "command": f"python benchmarks/entropy_model.py --train VIDEO... --test VIDEO... --steps "
        f"{' '.join(map(str, args.steps))} --keeps {' '.join(map(str, args.keeps))} --minutes {args.minutes:g}",
        "weights": tokenizer.spec.weight_hash,
        "minutes": args.minutes,
        "gains": gains,
        "training_clips": len(train),
        "training_cells": cells,
        "rows": measure(train, test, steps, args),
        "seconds": round(time.perf_counter() - began),
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def read(path: Path) -> Video:
    return read_video(path, size="256x256", frames=33)


def gains_of(tokenizer: Tokenizer, latents: Sequence[Tensor]) -> tuple[float, ...]:
    """The profile's, or measured on three clips."""
    if tokenizer.profile is not None and tokenizer.profile.gains:
        return tokenizer.profile.gains
    gains = Gains()
    for z_BCTHW in latents[:: max(1, len(latents) // 3)][:3]:
        gains = gains.update(tokenizer, z_BCTHW)
    return gains.finish()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--test", type=Path, nargs="+", required=True)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--steps", type=float, nargs="+", default=[0.9, 4.0])
    parser.add_argument("--keeps", type=float, nargs="+", default=[0.35, 1.0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--minutes", type=float, default=4.0, help="of training on the processor, for each network")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
