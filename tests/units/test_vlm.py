# SPDX-License-Identifier: Apache-2.0
"""The last-kept rule on visual tokens: exact counts, and the same choice as plain loops make."""

from __future__ import annotations

import json
import math
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import ConfigError, ShapeError, UsageError
from inlay.masking import MaskConfig, scored_scan
from inlay.vlm import CRITERIA, compute_retained_tokens_count, compute_retention_mask, last_kept_mask
from inlay.vlm.last_kept import ROUNDS, distances, search
from tests.guard.tree import ROOT


def film(frames: int, places: int, channels: int = 16, *, seed: int = 0) -> Tensor:
    """[T, P, D]: some places stand still, some drift, some jump."""
    g = torch.Generator().manual_seed(seed)
    speed_P1 = torch.rand(places, 1, generator=g) ** 3
    steps = torch.randn(frames, places, channels, generator=g) * speed_P1
    return steps.cumsum(0) + torch.randn(places, channels, generator=g)


def plain_scan(table: list, tau: float) -> tuple[list[tuple[int, int]], dict[tuple[int, int], float]]:
    """The tokens that the rule keeps at tau, and the distance of each token from the one kept last at its place."""
    places = range(len(table[0][0]))
    last, kept, score = dict.fromkeys(places, 0), [(0, p) for p in places], {}
    for t in range(1, len(table)):
        for p in places:
            score[t, p] = table[t][last[p]][p]
            if score[t, p] >= tau:
                kept.append((t, p))
                last[p] = t
    return kept, score


def number(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def plain_search(table: list, count: int) -> float:
    low = 0
    for shift, values in ROUNDS:
        over = [b for b in range(values) if len(plain_scan(table, number(low + (b << shift)))[0]) > count]
        low += max(over) << shift
    return number(low + 1)


def plain_mask(table: list, count: int) -> set[tuple[int, int]]:
    kept, score = plain_scan(table, plain_search(table, count))
    rest = sorted((place for place in score if place not in kept), key=lambda place: (-score[place], place))
    return {*kept, *rest[: count - len(kept)]}


def chosen(mask_TP: Tensor) -> set[tuple[int, int]]:
    return {(t, p) for t, p in mask_TP.nonzero().tolist()}


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("seed", range(4))
def test_the_choice_is_that_of_plain_loops(criterion: str, seed: int) -> None:
    x_TPD = film(5, 4, seed=seed)
    table = distances(x_TPD, CRITERIA[criterion]).tolist()
    for count in range(4, 21, 3):
        assert chosen(last_kept_mask(x_TPD, count, criterion=criterion)) == plain_mask(table, count)


def test_ties_go_to_the_earlier_frame_then_the_earlier_place() -> None:
    x_TPD = torch.zeros(4, 3, 8)
    x_TPD[2:] = 1.0  # at frame 2 all places change by the same; frames 1 and 3 repeat the frame before
    assert chosen(last_kept_mask(x_TPD, 5, criterion="l1")) == {(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)}
    still = torch.ones(4, 3, 8)
    assert chosen(last_kept_mask(still, 4, criterion="l1")) == {(0, 0), (0, 1), (0, 2), (1, 0)}


@pytest.mark.parametrize("seed", range(3))
def test_tau_is_a_crossing_even_where_the_count_rises_with_tau(seed: int) -> None:
    """A table of unrelated numbers: no metric, so that a larger tau often keeps more."""
    g = torch.Generator().manual_seed(seed)
    table_TSP = torch.rand(12, 12, 6, generator=g)
    table = table_TSP.tolist()
    taus = sorted(table_TSP.flatten().tolist())
    kept = [len(plain_scan(table, tau)[0]) for tau in taus]
    assert any(b > a for a, b in pairwise(kept)), "this table does not test what it should"
    for count in range(6, 72, 11):
        tau = search(table_TSP, count).item()
        below = number(struct.unpack("<I", struct.pack("<f", tau))[0] - 1)
        assert len(plain_scan(table, tau)[0]) <= count < len(plain_scan(table, below)[0])
        assert tau == plain_search(table, count)


@pytest.mark.parametrize("count", [60, 173, 300, 411])
def test_it_is_the_scan_of_the_tokeniser_at_that_tau(count: int) -> None:
    x_TPD = film(12, 48).mul(16).round()  # whole numbers: every sum is exact, in any order
    tau = search(distances(x_TPD, CRITERIA["l1"]), count).item()
    scan = scored_scan(x_TPD.permute(2, 0, 1)[None, ..., None], MaskConfig(tau=tau, criterion="latent-l1"))
    keep_TP = scan.keep_BTHW[0, :, :, 0]
    mask_TP = last_kept_mask(x_TPD, count, criterion="l1")
    assert keep_TP.sum() <= count and not (keep_TP & ~mask_TP).any()
    extra = scan.score_BTHW[0, :, :, 0][mask_TP & ~keep_TP]
    left = scan.score_BTHW[0, :, :, 0][~mask_TP]
    assert not len(extra) or extra.min() >= left.max()


def test_distances_are_what_they_are_called() -> None:
    x_TPD = film(6, 5, 32)
    cosine, l1 = (distances(x_TPD, CRITERIA[name]) for name in ("cosine", "l1"))
    for t in range(6):
        for s in range(6):
            torch.testing.assert_close(
                cosine[t, s], 1 - F.cosine_similarity(x_TPD[t], x_TPD[s], dim=-1), atol=2e-6, rtol=0
            )
            torch.testing.assert_close(l1[t, s], (x_TPD[t] - x_TPD[s]).abs().mean(-1))
    assert not cosine.diagonal().any() and not l1.diagonal().any()


def test_slow_drift_is_seen() -> None:
    """One place drifts by 0.1 a frame, another jumps by 0.3 once: the drift goes further, the jump is larger."""
    x_TPD = torch.zeros(20, 2, 4)
    x_TPD[:, 0] = torch.arange(20)[:, None] * 0.1
    x_TPD[10:, 1] = 0.3
    (extra,) = chosen(last_kept_mask(x_TPD, 3, criterion="l1")) - {(0, 0), (0, 1)}
    assert extra[1] == 0


RATES = [0.0, 0.01, 0.1, 0.25, 1 / 3, 0.5, 0.7, 0.75, 0.8, 0.9, 0.97, 0.999, 1.0]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("thw,merge", [((1, 4, 4), 2), ((2, 2, 2), 2), ((9, 7, 11), 2), ((5, 9, 6), 3), ((6, 5, 3), 1)])
def test_counts_are_exact_and_the_first_frame_is_whole(thw: tuple[int, int, int], merge: int, criterion: str) -> None:
    T, h, w = thw[0], thw[1] // merge, thw[2] // merge
    embeds = film(T, h * w).flatten(0, 1)
    for q in RATES:
        mask = compute_retention_mask(embeds, thw, merge, q, criterion=criterion)
        assert mask.shape == (T * h * w,) and mask.dtype == torch.bool and mask.device == embeds.device
        assert int(mask.sum()) == compute_retained_tokens_count(h * w, T, q)
        assert mask[: h * w].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_realistic_size_is_deterministic(dtype: torch.dtype) -> None:
    embeds = film(32, 24 * 24, 64).flatten(0, 1).to(dtype)
    size = torch.tensor([32, 24, 24])
    first, again = (compute_retention_mask(embeds, size, 1, 0.75) for _ in range(2))
    assert torch.equal(first, again) and int(first.sum()) == 32 * 24 * 24 // 4
    merged = compute_retention_mask(embeds, (32, 48, 48), 2, 0.75)
    assert torch.equal(merged, first), "the grid is given before the merge"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_count_holds_whatever_the_tokens_hold(bad: float, criterion: str) -> None:
    x_TPD = film(6, 8)
    x_TPD[3, 2:5] = bad
    for count in (9, 20, 47):
        assert int(last_kept_mask(x_TPD, count, criterion=criterion).sum()) == count
    assert int(last_kept_mask(torch.full_like(x_TPD, bad), 20, criterion=criterion).sum()) == 20


@pytest.mark.parametrize("criterion", CRITERIA)
def test_no_value_is_asked_for(criterion: str) -> None:
    """Tensors without values: whatever reads one, or has a shape that depends on one, fails."""
    embeds = torch.empty(32 * 144, 64, device="meta", dtype=torch.bfloat16)
    mask = compute_retention_mask(embeds, (32, 24, 24), 2, 0.75, criterion=criterion)
    assert mask.shape == (32 * 144,) and mask.device.type == "meta"


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls it a prototype
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_gpu_is_not_waited_for(criterion: str) -> None:
    embeds = film(32, 144, 64).flatten(0, 1).cuda()
    compute_retention_mask(embeds, (32, 24, 24), 2, 0.75, criterion=criterion)  # the first call loads kernels
    with waiting_is_an_error():
        mask = compute_retention_mask(embeds, (32, 24, 24), 2, 0.75, criterion=criterion)
    assert mask.is_cuda and int(mask.sum()) == 32 * 144 // 4


def test_no_gradient_is_recorded() -> None:
    x_TPD = film(4, 4).requires_grad_()
    assert int(last_kept_mask(x_TPD, 9).sum()) == 9


def test_wrong_requests_say_what_is_wrong() -> None:
    embeds = film(4, 6).flatten(0, 1)
    with pytest.raises(ShapeError, match="5x2x3 = 30 rows"):
        compute_retention_mask(embeds, (5, 4, 6), 2, 0.5)
    with pytest.raises(ShapeError, match="one or more"):
        compute_retention_mask(embeds[:0], (0, 4, 6), 2, 0.5)
    with pytest.raises(ConfigError, match="1 or more patches a side, which the spatial merge joins; got 0"):
        compute_retention_mask(embeds, (4, 4, 6), 0, 0.5)
    for q in (-0.1, 1.5, math.nan):
        with pytest.raises(ConfigError, match="from 0 to 1") as error:
            compute_retained_tokens_count(6, 4, q)
        assert error.value.about == ("q",)
    with pytest.raises(UsageError, match="cosine"):
        compute_retention_mask(embeds, (4, 4, 6), 2, 0.5, criterion="cosin")
    for count in (5, 25):
        with pytest.raises(ConfigError, match=f"keep 6 to 24 of them; asked for {count}"):
            last_kept_mask(film(4, 6), count)
    with pytest.raises(ShapeError, match="int64"):
        last_kept_mask(film(4, 6).long(), 7)
    wrong: Any
    for wrong in ((4, 24), torch.tensor([[4, 4, 6]]), None):
        with pytest.raises(ShapeError, match=r"three whole numbers of one video; got (\(4, 24\)|int64\[1, 3\]|None)"):
            compute_retention_mask(embeds, wrong, 2, 0.5)
    for wrong in ("0.5", None):
        with pytest.raises(ConfigError, match="from 0 to 1; got"):
            compute_retained_tokens_count(6, 4, wrong)
    with pytest.raises(ConfigError, match="num_frames is a whole number, 0 or more; got -1"):
        compute_retained_tokens_count(6, -1, 0.5)
    with pytest.raises(ConfigError, match=r"count is a whole number of tokens; got 7\.0"):
        last_kept_mask(film(4, 6), 7.0)  # type: ignore[arg-type]
    wrong = embeds.numpy()
    with pytest.raises(UsageError, match="got ndarray"):
        compute_retention_mask(wrong, (4, 4, 6), 2, 0.5)


def test_the_page_has_the_numbers_of_its_record() -> None:
    page = (ROOT / "docs" / "vlm.md").read_text(encoding="utf-8")
    record = json.loads((ROOT / "benchmarks" / "vlm_mask_cpu_2026-11-18.json").read_text())
    for row in record["choices"]:
        own = row["rule"] == "evs"
        name = "EVS" if own else row["rule"].replace(" ", ", ")
        values = [row[f"{c}_{kind}"] for c in ("cosine", "l1") for kind in ("mean", "largest")]
        shared = "" if own else f" {100 * row['shared_with_evs']:.0f} %"
        line = f"| {name} | {' | '.join(f'{v:.3f}' for v in values)} |{shared} |"
        assert line in page, line
    ms = {row["rule"]: row["ms"] for row in record["times"] if row["frames"] == 32}
    evs, cosine, l1 = (ms[rule] for rule in ("evs", "last-kept cosine", "last-kept l1"))
    assert f"EVS {evs:.0f} ms, last-kept {cosine:.0f} ms (cosine) and {l1:.0f} ms (l1)" in page
    record = json.loads((ROOT / "benchmarks" / "vlm_mask_h200_2026-11-19.json").read_text())
    found = {(row["frames"], row["tokens_a_frame"], row["rule"]): row for row in record["times"]}
    slower = []
    for frames, places in sorted({key[:2] for key in found}):
        rows = [found[frames, places, rule] for rule in ("evs", "last-kept cosine", "last-kept l1")]
        evs, cosine, l1 = (row["ms"] for row in rows)
        peaks = " | ".join(f"{row['peak_mb']:.0f}" for row in rows)
        line = f"| {frames} x {places} | {evs:.2f} | {cosine:.1f} | {l1:.1f} | {peaks} |"
        assert line in page, line
        slower += [cosine / evs, l1 / evs]
    assert f"{min(slower):.1f} to {max(slower):.0f} times as long as EVS" in page
    assert not any(row["waits_for_device"] for row in record["times"])
    assert all(row["same_as_on_cpu"] == 1 for row in record["choices"])
