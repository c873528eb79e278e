# SPDX-License-Identifier: Apache-2.0
"""Video to tokens and back, on clips of every awkward kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inlay.codec import Encoder
from inlay.errors import ConfigError, MissingError, UsageError
from inlay.fill import Filler, Lit, LitConfig
from inlay.tokenizer import Tokenizer, pick_device
from inlay.video.frames import Video
from tests.conftest import moving_square, still


@pytest.mark.parametrize(
    ("frames", "height", "width"), [(1, 16, 16), (33, 24, 40), (34, 17, 31), (2, 8, 9), (70, 33, 16), (5, 1, 1)]
)
def test_any_size_and_length(tiny_tokenizer: Tokenizer, frames: int, height: int, width: int) -> None:
    video = moving_square(frames, height, width)
    tokens = tiny_tokenizer.encode(video, tau=0.1)
    assert tokens.info.frames == frames
    back = tiny_tokenizer.decode(tokens)
    assert back.frames.shape == video.frames.shape
    assert back.fps == video.fps


def test_static_clip_keeps_a_ninth(tiny_tokenizer: Tokenizer) -> None:
    tokens = tiny_tokenizer.encode(still(33, 64, 64), tau=1e-4)
    assert len(tokens) * 9 == tokens.cells


def test_tau_zero_is_the_backbones_own_reconstruction(tiny_mini) -> None:  # type: ignore[no-untyped-def]
    lit = Lit.build(LitConfig(width=64, heads=2, blocks=1)).eval()
    torch.nn.init.normal_(lit.out_proj.weight)
    tokenizer = Tokenizer(tiny_mini, filler=Filler({"lit": lit}))
    video = moving_square(33, 32, 48)
    with torch.inference_mode():
        x = tiny_mini.decode(tiny_mini.encode(video.pixels()))[0]
    for fill in ("lit", "hold", "linear"):
        back = tokenizer.decode(tokenizer.encode(video, tau=0.0), fill=fill)
        assert torch.equal(back.frames, Video.from_pixels(x).frames)


def test_pieces_of_any_length_give_the_same_tokens(tiny_tokenizer: Tokenizer) -> None:
    video = moving_square(70, 16, 24)
    whole = tiny_tokenizer.encode(video, tau=0.1)
    for size in (1, 7, 33, 40):
        pieces = [video[i : i + size] for i in range(0, 70, size)]
        parts = list(Encoder(tiny_tokenizer, tau=0.1).encode(pieces))
        assert [len(p) for p in parts] == [len(p) for p in whole.chunks()]
        assert torch.equal(torch.cat([p.values for p in parts]), whole.values)


def test_a_list_comes_back_in_its_order(tiny_tokenizer: Tokenizer) -> None:
    videos = [
        moving_square(9, 16, 16),
        moving_square(5, 24, 16),
        moving_square(9, 16, 16, seed=1),
        moving_square(40, 16, 16),
    ]
    together = tiny_tokenizer.encode(videos, tau=0.1)
    for video, tokens in zip(videos, together, strict=True):
        alone = tiny_tokenizer.encode(video, tau=0.1)
        assert torch.equal(alone.mask, tokens.mask)
        torch.testing.assert_close(alone.values, tokens.values)
        assert tokens.info.frames == len(video)


def test_times_travel(tiny_tokenizer: Tokenizer) -> None:
    times = torch.cumsum(torch.rand(40, dtype=torch.float64), 0)
    video = replace(moving_square(40, 16, 16), seconds=times)
    assert torch.equal(tiny_tokenizer.decode(tiny_tokenizer.encode(video, tau=0.1)).seconds, times)


def test_fill_gives_dense_latents(tiny_tokenizer: Tokenizer) -> None:
    tokens = tiny_tokenizer.encode(moving_square(34, 16, 24), tau=0.2)
    dense = tiny_tokenizer.fill(tokens)
    assert dense.shape == (1, 16, 10, 2, 3)
    assert torch.equal(dense[0].permute(1, 2, 3, 0)[tokens.mask], tokens.values)


def test_tokens_of_other_weights_are_refused(tiny_tokenizer: Tokenizer) -> None:
    tokens = tiny_tokenizer.encode(still(5, 16, 16), tau=0.2)
    strange = replace(tokens, recipe=replace(tokens.recipe, weight_hash="f" * 16))
    with pytest.raises(MissingError, match="were made with mini-untrained"):
        tiny_tokenizer.decode(strange)


def test_missing_lit_unknown_fill_missing_tau(tiny_mini) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(MissingError, match="no weights for the fill 'lit'"):
        Filler(default="lit")
    with pytest.raises(UsageError, match="did you mean 'linear'"):
        Filler(default="linea")
    with pytest.raises(ConfigError, match=r"no default tau .*; `inlay calibrate` finds one, or give it"):
        Tokenizer(tiny_mini).encode(still(1, 8, 8))


def test_bfloat16_runs_and_decides_in_float32(tiny_mini) -> None:  # type: ignore[no-untyped-def]
    tokenizer = Tokenizer.from_pretrained("mini-untrained", device="cpu", dtype=torch.bfloat16)
    tokens = tokenizer.encode(still(33, 32, 32), tau=1e-4)
    assert len(tokens) * 9 == tokens.cells
    assert tokenizer.decode(tokens).frames.shape == (33, 32, 32, 3)


def test_devices_are_checked() -> None:
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="not a device"):
        pick_device("gpu0")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="not available"):
            pick_device("cuda")
