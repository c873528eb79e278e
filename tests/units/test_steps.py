# SPDX-License-Identifier: Apache-2.0
"""Steps: the ladder, gains measured by decoding, and what a profile makes of both."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.backbones import WEIGHTS
from inlay.codec import EncodeConfig, Parts, encode_clip
from inlay.codec.choose import usual_bits
from inlay.container import as_stored
from inlay.container.q8 import STEPS_PER_DEVIATION
from inlay.errors import ConfigError, UsageError
from inlay.masking import LADDER, OWN, Profile, step_size
from inlay.masking.steps import channel_steps
from inlay.measure.gains import Gains
from inlay.tokenizer import Tokenizer
from inlay.video.synthetic import demo_clip
from tests.conftest import moving_square
from tests.contracts.blocks import CHANNELS, Blocks


def profile(**more: object) -> Profile:
    return Profile(backbone="x", weight_hash="y", tau=0.1, **more)  # type: ignore[arg-type]


class TestLadder:
    def test_names_and_numbers(self) -> None:
        assert list(LADDER.values()) == sorted(LADDER.values())
        for name, size in LADDER.items():
            assert step_size(name) == step_size(size) == step_size(str(size)) == size
        assert step_size(OWN) is None

    @pytest.mark.parametrize("wrong", ["", "fines", "nan", "0", "-1", "inf", "1e7", 0, -2.5, math.nan, [1.0]])
    def test_what_is_neither_is_refused(self, wrong: object) -> None:
        with pytest.raises(ConfigError, match="a step is one of lossless-ish") as caught:
            step_size(wrong)  # type: ignore[arg-type]
        assert caught.value.about == ("step",) and "\n" not in str(caught.value)

    def test_steps_are_equal_in_the_picture_and_survive_storage(self) -> None:
        gains = (0.5, 3.0, 41.0)
        steps = channel_steps(gains, 2.0)
        assert [step * gain for step, gain in zip(steps, gains, strict=True)] == pytest.approx([2.0] * 3, rel=2**-8)
        assert torch.equal(torch.tensor(steps).bfloat16().float(), torch.tensor(steps))

    def test_a_channel_that_reaches_nothing_has_a_finite_step(self) -> None:
        assert channel_steps((0.0, 10.0), 1.0) == pytest.approx((100.0, 0.1), rel=2**-8)


class TestGains:
    @pytest.fixture
    def parts(self) -> Parts:
        return Parts(Blocks())

    def test_of_blocks_are_what_they_are_by_construction(self, parts: Parts) -> None:
        """A unit of a channel moves a quarter of one colour of a cell by 127.5 grey levels: 1/12 of the numbers."""
        z = torch.randn(1, CHANNELS, 4, 13, 15, generator=torch.Generator().manual_seed(0)) / 4
        found = Gains().update(parts, z).update(parts, z / 2).finish()
        assert found == pytest.approx([127.5 / math.sqrt(CHANNELS)] * CHANNELS, rel=0.02)

    def test_of_a_channel_twice_as_strong_are_twice_as_large(self) -> None:
        class Louder(Blocks):
            def decode(self, z_BCTHW: torch.Tensor) -> torch.Tensor:
                scale = torch.ones(CHANNELS, 1, 1, 1)
                scale[3], scale[5] = 2.0, 0.0
                return super().decode(z_BCTHW * scale)

        z = torch.zeros(1, CHANNELS, 2, 4, 4)
        plain, louder = (Gains().update(Parts(kind()), z).finish() for kind in (Blocks, Louder))
        ratio = [b / a for a, b in zip(plain, louder, strict=True)]
        assert ratio == pytest.approx([1, 1, 1, 2, 1, 0, *[1] * (CHANNELS - 6)], abs=1e-3)

    def test_need_a_clip(self) -> None:
        with pytest.raises(UsageError, match="at least one clip"):
            Gains().finish()

    def test_fast_paths_do_not_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their rounding is larger than the noise whose way to the picture is measured."""
        if not (WEIGHTS / "mini.safetensors").is_file():
            pytest.skip("a small network has no fast path, and this copy has no other")
        tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
        z = encode_clip(tokenizer, demo_clip(9, 96, 96)).z_BCTHW
        found = []
        for level in ("0", "1"):
            monkeypatch.setenv("INLAY_FAST", level)
            found.append(Gains().update(tokenizer, z).finish())
        assert found[0] == found[1]


class TestProfile:
    def test_keeps_gains_and_step(self, tmp_path: Path) -> None:
        made = profile(gains=(1.0, 2.0), step=3.0)
        made.save(tmp_path / "p.json")
        assert Profile.load(tmp_path / "p.json") == made
        assert made.steps(1.0) == (1.0, 0.5)

    @pytest.mark.parametrize(
        "more",
        [{"step": 1.0}, {"gains": (1.0,), "step": 0.0}, {"gains": (1.0,), "step": "fine"}, {"gains": (-1.0, 1.0)},
         {"gains": (0.0, 0.0)}, {"gains": (math.inf,)}, {"gains": "12"}],
    )  # fmt: skip
    def test_refuses_what_makes_no_steps(self, more: dict[str, object]) -> None:
        with pytest.raises(ConfigError):
            profile(**more)

    def test_without_gains_refuses_a_step_and_says_what_to_do(self) -> None:
        with pytest.raises(ConfigError, match=r"no gains of x.*calibrate it"):
            profile().steps(2.0)


class TestRecipe:
    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        gains = tuple(50.0 + 10 * channel for channel in range(CHANNELS))
        blocks = Blocks()
        made = replace(profile(), weight_hash=blocks.spec.weight_hash, gains=gains, step=2.0)
        return Tokenizer(blocks, profile=made)

    def steps(self, tokenizer: Tokenizer, **settings: object) -> tuple[float | None, tuple[float, ...] | None]:
        recipe = tokenizer.recipe(EncodeConfig(**settings), 0.1)  # type: ignore[arg-type]
        return recipe.step, recipe.steps

    def test_the_profiles_step_is_the_default(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.profile is not None
        assert self.steps(tokenizer) == (2.0, tokenizer.profile.steps(2.0))
        assert self.steps(tokenizer, step="coarse") == (LADDER["coarse"], tokenizer.profile.steps(LADDER["coarse"]))
        assert self.steps(tokenizer, step="0.25") == (0.25, tokenizer.profile.steps(0.25))

    def test_a_precision_without_steps_and_their_own_choice_have_none(self, tokenizer: Tokenizer) -> None:
        assert self.steps(tokenizer, precision="fp16") == (None, None)
        assert self.steps(tokenizer, step=OWN) == (None, None)
        assert self.steps(tokenizer, precision="fp16", step=OWN) == (None, None)
        with pytest.raises(ConfigError, match="fp16 has none") as caught:
            EncodeConfig(precision="fp16", step="fine")
        assert caught.value.about == ("step", "precision")

    def test_without_a_profile_all_is_as_it_was(self) -> None:
        bare = Tokenizer(Blocks())
        assert self.steps(bare) == (None, None)
        with pytest.raises(ConfigError, match="no gains"):
            self.steps(bare, step=1.0)

    def test_gains_of_another_count_are_refused(self, tokenizer: Tokenizer) -> None:
        wrong = Tokenizer(Blocks(), profile=profile(gains=(1.0, 2.0), step=1.0))
        with pytest.raises(ConfigError, match=f"gains of 2 channels.*has {CHANNELS}"):
            self.steps(wrong)

    def test_no_value_is_off_by_more_than_half_a_step(self, tokenizer: Tokenizer) -> None:
        tokens = tokenizer.encode(moving_square(9, 32, 32), tau=0.0, step="coarse")
        assert tokens.recipe.steps is not None
        off = (as_stored(tokens).values - tokens.values).abs().amax(0)
        assert bool((off <= torch.tensor(tokens.recipe.steps) / 2 * (1 + 1e-6)).all()) and float(off.max()) > 0

    def test_the_first_guess_of_bits_follows_the_steps(self, tokenizer: Tokenizer) -> None:
        plain = tokenizer.recipe(EncodeConfig(step=OWN), 0.1)
        same = replace(plain, steps=tuple(std / STEPS_PER_DEVIATION for std in tokenizer.spec.latent_std))
        twice = replace(plain, steps=tuple(2 * std / STEPS_PER_DEVIATION for std in tokenizer.spec.latent_std))
        wide = replace(plain, steps=(1e9,) * CHANNELS)
        bits = [usual_bits(recipe, tokenizer.spec) / CHANNELS for recipe in (plain, same, twice, wide)]
        assert bits == pytest.approx([5, 5, 4, 1])
