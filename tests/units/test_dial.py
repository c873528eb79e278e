# SPDX-License-Identifier: Apache-2.0
"""Tau and step as one dial: which pairs are on it, what lies between and beyond, and what budgets make of it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from inlay.codec import EncodeConfig, VideoEncoder, WholeVideo
from inlay.codec.quality import mean_psnr
from inlay.container import as_stored, to_bytes
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.masking import LADDER, Budget, Dial, Profile, best_pairs
from inlay.masking.dial import BEYOND
from inlay.measure import curve
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from tests.contracts.blocks import CHANNELS, Blocks

DIAL = Dial(taus=(0.0, 0.1, 0.2), steps=(1.0, 2.0, 8.0), bits=(1.0, 0.5, 0.125), psnr=(30.0, 26.0, 20.0))
PIXELS = 17 * 96 * 96


class TestDial:
    def test_pairs_stand_at_one_two_four(self) -> None:
        for place, pair in ((1, (0.0, 1.0)), (2, (0.1, 2.0)), (4, (0.2, 8.0))):
            assert DIAL.at(place) == pytest.approx(pair)

    def test_both_settings_grow_with_the_place(self) -> None:
        places = [2.0 ** (k / 8) for k in range(-40, 80)]
        for (a, b), (c, d) in pairwise(map(DIAL.at, places)):
            assert a <= c and b <= d * (1 + 1e-12)

    def test_beyond_the_ends(self) -> None:
        assert DIAL.at(0.0) == (0.0, 1 / BEYOND)
        assert DIAL.at(2.0**-30) == pytest.approx((0.0, 1 / BEYOND))
        assert DIAL.at(8) == pytest.approx((0.4, 16.0))
        tau, step = DIAL.at(1e30)
        assert tau == 1e6 and step == pytest.approx(8 * BEYOND)

    def test_a_start_is_where_it_was_measured(self) -> None:
        assert [DIAL.place_of(Budget(bits=bits)) for bits in (5, 1, 0.5, 0.25, 0.125, 0.01)] == pytest.approx(
            [1, 1, 2, 2**1.5, 4, 4]
        )
        assert [DIAL.place_of(Budget(psnr=psnr)) for psnr in (40, 30, 28, 26, 20, 3)] == pytest.approx(
            [1, 1, 2**0.5, 2, 4, 4]
        )

    def test_one_pair_is_a_dial(self) -> None:
        one = Dial(taus=(0.1,), steps=(2.0,), bits=(1.0,), psnr=(30.0,))
        assert one.at(2) == pytest.approx((0.2, 4.0)) and one.place_of(Budget(bits=0.3)) == 1


class TestBestPairs:
    def test_take_the_hull_and_leave_what_is_worse(self) -> None:
        points = [(0.0, 1.0, 1.0, 30.0), (0.1, 1.0, 0.9, 27.0), (0.0, 2.0, 0.6, 28.0), (0.1, 4.0, 0.3, 25.0),
                  (0.3, 1.0, 0.4, 22.0), (0.3, 8.0, 0.1, 20.0), (0.0, 1.0, 1.2, 29.0)]  # fmt: skip
        found = best_pairs(points)
        assert found is not None
        assert (found.taus, found.steps) == ((0.0, 0.0, 0.1, 0.3), (1.0, 2.0, 4.0, 8.0))
        assert found.bits == (1.0, 0.6, 0.3, 0.1)

    def test_no_pair_refines_what_the_one_before_coarsened(self) -> None:
        draw = torch.Generator().manual_seed(3)
        points = []
        for tau in (0.0, 0.1, 0.2, 0.4):
            for step in (0.5, 1.0, 2.0, 4.0):
                noise = float(torch.rand(1, generator=draw))
                points.append((tau, step, (1 + 0.2 * noise) / (1 + 3 * tau) / (1 + step), 40 - 20 * tau - 2 * step))
        found = best_pairs(points)
        assert found is not None and len(found.taus) > 2
        for row, falls in ((found.taus, False), (found.steps, False), (found.bits, True), (found.psnr, True)):
            assert list(row) == sorted(row, reverse=falls)

    def test_are_none_where_no_cell_is_dropped(self) -> None:
        assert best_pairs([(0.0, 1.0, 1.0, 30.0), (0.0, 2.0, 0.5, 29.0)]) is None
        assert best_pairs([]) is None


GOOD = {"dial_taus": (0.0, 0.1), "dial_steps": (1.0, 2.0), "dial_bits": (1.0, 0.5), "dial_psnr": (30.0, 20.0)}


class TestProfile:
    def test_has_the_dial(self) -> None:
        profile = Profile(backbone="x", weight_hash="y", tau=0.1, gains=(1.0,), **GOOD)
        assert profile.dial is not None and profile.dial.at(2) == pytest.approx((0.1, 2.0))

    @pytest.mark.parametrize(
        "wrong",
        [{"dial_taus": (0.1,)}, {"dial_taus": (0.2, 0.1)}, {"dial_taus": (-1.0, 0.1)}, {"dial_taus": (0.0, 0.0)},
         {"dial_steps": (2.0, 1.0)}, {"dial_steps": (0.0, 1.0)}, {"dial_bits": (0.5, 0.5)}, {"dial_bits": (1.0, 0.0)},
         {"dial_psnr": (20.0, 30.0)}, {"gains": ()}],
    )  # fmt: skip
    def test_refuses_a_wrong_one(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ConfigError):
            Profile(**{"backbone": "x", "weight_hash": "y", "tau": 0.1, "gains": (1.0,), **GOOD, **wrong})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    blocks = Blocks()
    profile = Profile(
        backbone="x", weight_hash=blocks.spec.weight_hash, tau=0.05, gains=(36.8,) * CHANNELS, step=2.0,
        dial_taus=(0.0, 0.02, 0.05, 0.1), dial_steps=(0.5, 2.0, 4.0, 8.0), dial_bits=(0.3, 0.2, 0.14, 0.085),
        dial_psnr=(17.4, 17.38, 17.3, 17.0),
    )  # fmt: skip
    return Tokenizer(blocks, profile=profile)


@pytest.fixture(scope="module")
def clip() -> Video:
    """A texture of which half moves, and grows brighter where it does not: something for every dial to find."""
    draw = torch.Generator().manual_seed(0)
    still = F.interpolate(torch.rand(1, 3, 48, 48, generator=draw), scale_factor=2, mode="bilinear")[0] * 220
    frames = []
    for t in range(17):
        moved = still.roll(3 * t, dims=2)
        moved[:, :48] = still[:, :48] + 0.6 * t
        frames.append(moved.permute(1, 2, 0))
    return Video(frames=torch.stack(frames).clamp(0, 255).to(torch.uint8))


class TestBudgets:
    def solved(self, tokenizer: Tokenizer, clip: Video, budget: Budget, **settings: object) -> Tokens:
        encoder = VideoEncoder(tokenizer, EncodeConfig(**settings), budget=budget, original=lambda: [clip])  # type: ignore[arg-type]
        tokens = Tokens.join(list(encoder.encode([clip])))
        assert encoder.report is not None
        assert (encoder.report.tau, encoder.report.step) == (tokens.recipe.tau, tokens.recipe.step)
        return tokens

    @pytest.mark.parametrize("bits", [0.09, 0.15, 0.28])
    def test_bits_turn_both_and_are_never_exceeded(self, tokenizer: Tokenizer, clip: Video, bits: float) -> None:
        tokens = self.solved(tokenizer, clip, Budget(bits=bits))
        size = 8 * len(to_bytes(tokens)) / PIXELS
        assert 0.95 * bits <= size <= bits
        assert tokenizer.profile is not None and tokenizer.profile.dial is not None
        dial = tokenizer.profile.dial
        places = [2.0 ** (k / 64) for k in range(-256, 1000)]
        near = min(places, key=lambda place: abs(dial.at(place)[1] - (tokens.recipe.step or 0)))
        assert dial.at(near)[0] == pytest.approx(tokens.recipe.tau, rel=0.05, abs=0.002), "a pair that is on the dial"

    def test_fewer_bits_are_coarser_in_both(self, tokenizer: Tokenizer, clip: Video) -> None:
        rich, poor = (self.solved(tokenizer, clip, Budget(bits=bits)).recipe for bits in (0.25, 0.1))
        assert rich.tau < poor.tau and (rich.step or 0) < (poor.step or 0)

    def test_a_given_tau_or_step_is_fixed(self, tokenizer: Tokenizer, clip: Video) -> None:
        by_step = self.solved(tokenizer, clip, Budget(bits=0.15, tau=0.05))
        by_tau = self.solved(tokenizer, clip, Budget(bits=0.15), step=3)
        assert by_step.recipe.tau == 0.05 and by_tau.recipe.step == 3.0
        for tokens in (by_step, by_tau):
            assert 0.95 * 0.15 <= 8 * len(to_bytes(tokens)) / PIXELS <= 0.15

    def test_psnr_turns_both(self, tokenizer: Tokenizer, clip: Video) -> None:
        best = mean_psnr([clip], [tokenizer.decode(tokenizer.encode(clip, tau=0.0, step=0.1))])
        target = best - 0.4
        tokens = self.solved(tokenizer, clip, Budget(psnr=target))
        assert target <= mean_psnr([clip], [tokenizer.decode(as_stored(tokens))]) <= target + 0.1
        assert tokens.recipe.step != 2.0
        with pytest.raises(ConfigError, match="beyond this backbone: at its finest"):
            self.solved(tokenizer, clip, Budget(psnr=best + 10))

    def test_a_stream_takes_the_pair_of_its_rate(self, tokenizer: Tokenizer, clip: Video) -> None:
        tokens = self.solved(tokenizer, clip, Budget(bits=0.14, bucket_seconds=1))
        assert (tokens.recipe.tau, tokens.recipe.step) == (pytest.approx(0.05), pytest.approx(4.0))
        fixed = self.solved(tokenizer, clip, Budget(bits=0.14, bucket_seconds=1), step="fine")
        assert (fixed.recipe.tau, fixed.recipe.step) == (0.05, LADDER["fine"])

    def test_counts_and_other_criteria_leave_the_dial_alone(self, tokenizer: Tokenizer, clip: Video) -> None:
        assert self.solved(tokenizer, clip, Budget(keep=0.5)).recipe.step == 2.0
        assert self.solved(tokenizer, clip, Budget(bits=0.15), criterion="latent-l2").recipe.step == 2.0
        assert self.solved(tokenizer, clip, Budget(bits=1.0), precision="fp16").recipe.step is None

    def test_without_a_dial_bits_turn_tau_alone(self, tokenizer: Tokenizer, clip: Video) -> None:
        assert tokenizer.profile is not None
        bare = replace(tokenizer.profile, dial_taus=(), dial_steps=(), dial_bits=(), dial_psnr=())
        tokens = self.solved(Tokenizer(Blocks(), profile=bare), clip, Budget(bits=0.15))
        assert tokens.recipe.step == 2.0 and tokens.recipe.tau > 0

    @pytest.mark.parametrize(
        ("settings", "says"),
        [({"step": 2.0}, "nothing is left to grant it with"), ({"precision": "fp16"}, "fp16 has none")],
    )
    def test_what_leaves_nothing_to_turn_is_refused(
        self, tokenizer: Tokenizer, clip: Video, settings: dict[str, object], says: str
    ) -> None:
        with pytest.raises(ConfigError, match=says):
            self.solved(tokenizer, clip, Budget(bits=0.15, tau=0.05), **settings)

    def test_a_fixed_tau_without_gains_is_refused(self, clip: Video) -> None:
        with pytest.raises(ConfigError, match="no gains"):
            self.solved(Tokenizer(Blocks()), clip, Budget(bits=0.15, tau=0.05))

    def test_too_few_bits_are_refused_with_the_least(self, tokenizer: Tokenizer, clip: Video) -> None:
        with (
            WholeVideo.of(tokenizer, [clip]) as video,
            pytest.raises(ConfigError, match=r"0\.001 bits a pixel is less than the 0\."),
        ):
            video.solve(Budget(bits=0.001))

    @pytest.mark.parametrize(
        ("budget", "settings"),
        [
            (Budget(bits=0.001), {}),
            (Budget(bits=0.001), {"scale": "1"}),
            (Budget(bits=0.001), {"step": 3.0}),
            (Budget(bits=0.001, tau=0.05), {}),
            (Budget(psnr=99), {"step": 8.0}),
            (Budget(psnr=99, tau=0.1), {}),
            (Budget(keep=0.001), {"key_slots": "whole"}),
            (Budget(keep=0.001), {"key_slots": "thin"}),
        ],
    )
    @pytest.mark.parametrize("frames", [5, 9])
    def test_the_limit_that_a_refusal_tells_is_granted(
        self, tokenizer: Tokenizer, clip: Video, budget: Budget, settings: dict[str, object], frames: int
    ) -> None:
        with pytest.raises(ConfigError) as refused:
            self.solved(tokenizer, clip[:frames], budget, **settings)
        found = re.search(r"less than the ([\d.]+)|back at ([\d.]+) dB|\(([\d.]+)% of", str(refused.value))
        assert found is not None, refused.value
        told = float(next(filter(None, found.groups()))) / (100 if budget.kind == "keep" else 1)
        self.solved(tokenizer, clip[:frames], replace(budget, **{budget.kind: round(told, 6)}), **settings)

    def test_of_several_sizes_the_least_is_told(self, tokenizer: Tokenizer, clip: Video) -> None:
        least, small = [], Video(frames=clip.frames[:5, :8, :8])  # one cell: a smaller size only costs more header
        for scale in ("auto", "1", "3/4", "1/2"):
            with pytest.raises(ConfigError) as refused:
                self.solved(tokenizer, small, Budget(bits=1e-5), scale=scale)
            least.append(re.findall(r"less than the ([\d.]+)", str(refused.value))[0])
        assert least[0] == min(least[1:]) < least[-1]

    def test_what_was_fixed_is_named_by_a_refusal(self, tokenizer: Tokenizer, clip: Video) -> None:
        with pytest.raises(ConfigError, match=r"beyond tau 0\.1: at its finest"):
            self.solved(tokenizer, clip, Budget(psnr=99, tau=0.1))
        with pytest.raises(ConfigError, match=r"beyond step 8\.0: at its finest"):
            self.solved(tokenizer, clip, Budget(psnr=99), step=8.0)
        with pytest.raises(ConfigError, match=r"beyond scale 1/2: at its finest .* dB; ask for less"):
            self.solved(tokenizer, clip, Budget(psnr=99), scale="1/2")
        with pytest.raises(ConfigError, match=r"that tau 0\.05 takes with the coarsest steps; .* a larger tau"):
            self.solved(tokenizer, clip, Budget(bits=0.001, tau=0.05))


class TestMeasured:
    def test_calibration_finds_pairs_and_a_default(self, clip: Video) -> None:
        """On blocks, whose gains are known: more bits look better along the dial, and the default keeps its promise."""
        parts = Tokenizer(Blocks())
        profile = Profile(
            backbone="x", weight_hash="0" * 16, tau=0.03, taus=(0.01, 0.03, 0.1, 0.2), keep_rates=(0.6, 0.4, 0.25, 0.1),
            gains=(36.8,) * CHANNELS,
        )  # fmt: skip
        means = curve.mean_pairs([curve.measure_clip(parts, profile, clip)] * 2)
        assert [(pair.tau, pair.step) for pair in means] == curve.pairs(profile)
        dial = best_pairs([(p.tau, p.step, p.bits, p.psnr) for p in means if p.step is not None])
        assert dial is not None and len(dial.taus) >= 3
        step = curve.default_step(profile.tau, means)
        own = means[0]
        assert own.step is None and step is not None
        tokens = Tokenizer(Blocks(), profile=profile).encode(clip, tau=0.03, step=step, mode="clips", cuts=False)
        assert 8 * len(to_bytes(tokens)) / PIXELS < 0.8 * own.bits
        back = Tokenizer(Blocks()).decode(as_stored(tokens))
        assert own.psnr - curve.MOST_LOSS_DB - 0.02 <= mean_psnr([clip], [back]) < own.psnr

    def test_a_step_that_saves_nothing_is_no_default(self) -> None:
        own = curve.Pair(tau=0.1, step=None, bits=1.0, psnr=30.0)
        rows = [curve.Pair(tau=0.1, step=step, bits=1.2 - 0.01 * step, psnr=30 - step) for step in curve.STEPS]
        assert curve.default_step(0.1, [own, *rows]) is None
        cheap = [replace(row, bits=0.5, psnr=30 - 0.1 * row.step) for row in rows]
        assert curve.default_step(0.1, [own, *cheap], 0.2) == pytest.approx(2.0, rel=0.02)
        assert curve.default_step(0.1, [own, *cheap], 0.4) == pytest.approx(4.0, rel=0.02)
        assert curve.default_step(0.1, [own, *[replace(row, psnr=10.0) for row in rows]]) is None
        assert math.isclose(curve.default_step(0.1, [own, *[replace(r, bits=0.1, psnr=30) for r in rows]]) or 0, 16)
