# SPDX-License-Identifier: Apache-2.0
"""A second look: what the fill gets wrong is kept, within the same budgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.backbones import WEIGHTS
from inlay.codec import Decoder, EncodeConfig, Encoder, LatentDecoder, WholeVideo, encode_clip
from inlay.codec.look import Looker
from inlay.codec.quality import mean_psnr
from inlay.container import as_stored
from inlay.errors import ConfigError
from inlay.masking import KEY_WEIGHT, SECOND_LOOK, Budget, SelectState, fill_error
from inlay.tokenizer import Tokenizer
from inlay.video import read_video
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip
from tests.contracts.blocks import Blocks

TAU = 0.1
TWICE = EncodeConfig(second_look=True, fill="linear", cuts=False)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(Blocks())


def moving(frames: int = 41) -> Video:
    return demo_clip(frames, 48, 64)


@pytest.mark.parametrize("mode", ["clips", "dual-cache"])
@pytest.mark.parametrize("key_slots", ["whole", "thin"])
def test_no_dropped_cell_is_further_off_than_it_may_be(tokenizer: Tokenizer, mode: str, key_slots: str) -> None:
    """The first chunk, filled as a decoder fills it, once the scan alone has chosen."""
    clip = moving(17)
    config = replace(TWICE, mode=mode, key_slots=key_slots, chunk_frames=17, precision="fp32")
    once, twice = (
        next(Encoder(tokenizer, c, tau=TAU).encode([clip])) for c in (replace(config, second_look=False), config)
    )
    z = encode_clip(tokenizer, clip).z_BCTHW
    error = fill_error(z, LatentDecoder(tokenizer.filler, fill="linear").push(once))[0]
    error[0] *= KEY_WEIGHT
    wrong = error >= SECOND_LOOK * TAU
    assert torch.equal(twice.mask, once.mask | wrong), "what the scan keeps, and what the fill gets wrong"
    assert len(once) < len(twice) < twice.cells


def test_a_chunk_goes_on_from_what_both_looks_kept(tokenizer: Tokenizer) -> None:
    config = replace(TWICE, mode="dual-cache", chunk_frames=9).resolve(tokenizer.spec)
    with WholeVideo.of(tokenizer, [moving()], config) as video:
        looker, state = Looker(tokenizer, config, TAU), SelectState()
        held: torch.Tensor | None = None
        for chunk in video.spool:
            chosen = looker.select(chunk, state)
            for z_CHW, keep_HW in zip(chunk.z_BCTHW[0].unbind(1), chosen.keep_BTHW[0], strict=True):
                held = z_CHW if held is None else torch.where(keep_HW, z_CHW, held)
            state = chosen.state
            assert state.reference_BCHW is not None and held is not None
            assert torch.equal(state.reference_BCHW[0], held), "the latents kept last"


@pytest.mark.parametrize(
    "budget", [Budget(keep=0.3), Budget(tokens=200), Budget(keep=0.3, exact=True)], ids=["keep", "tokens", "exact"]
)
def test_a_number_of_tokens_is_met_exactly(tokenizer: Tokenizer, budget: Budget) -> None:
    clip = moving()
    with WholeVideo.of(tokenizer, [clip], replace(TWICE, mode="clips")) as video:
        solved = video.solve(budget)
        tokens = list(solved)
        wanted = budget.tokens or int((budget.keep or 0) * video.cells)
        assert sum(map(len, tokens)) == wanted
        scanned = sum(map(len, video.tokens(solved.recipe, extra=0)))
    assert scanned <= 0.9 * wanted and solved.extra == wanted - scanned


def test_the_smallest_budget_is_still_granted(tokenizer: Tokenizer) -> None:
    with WholeVideo.of(tokenizer, [moving()], replace(TWICE, mode="clips")) as video:
        assert sum(map(len, video.solve(Budget(tokens=video.fixed)))) == video.fixed
        with pytest.raises(ConfigError, match="too few"):
            video.solve(Budget(tokens=video.fixed - 1))


@pytest.mark.parametrize(
    "settings",
    [{"criterion": "pixel-l1"}, {"reference": "previous"}, {"noise": True}],
    ids=["pixels", "previous", "noise"],
)
def test_what_it_does_not_go_with_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="a second look compares latents") as caught:
        EncodeConfig(second_look=True, **settings)  # type: ignore[arg-type]
    assert "second_look" in caught.value.about


def test_a_bucket_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="a bucket steers slot by slot"):
        Encoder(tokenizer, TWICE, budget=Budget(keep=0.3, bucket_seconds=1))


def test_real_clips_come_back_better_for_the_same_tokens(shared: Path) -> None:
    if not (WEIGHTS / "mini.safetensors").is_file():
        pytest.skip("this copy has no weights")
    tokenizer = Tokenizer.from_pretrained("mini")
    for name in ("dance-twirl", "camel"):
        clip = read_video(next((shared / "data" / "davis").glob(f"*_{name}.mp4")), size="128x128", frames=33)
        found = []
        for second_look in (False, True):
            tokens = tokenizer.encode(clip, keep=0.3, exact=True, second_look=second_look)
            assert len(tokens) == int(0.3 * tokens.cells)
            found.append(mean_psnr([clip], Decoder(tokenizer).decode([as_stored(tokens)])))
        assert found[1] > found[0] + 0.1, name
