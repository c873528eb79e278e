# SPDX-License-Identifier: Apache-2.0
"""Whoever looks on sees every network call, every chunk of latents and of tokens, and changes none of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from inlay.backbones import Backbone
from inlay.codec import (
    MODES,
    Decoder,
    EncodeConfig,
    Encoder,
    KeepCurve,
    LatentChunk,
    Watch,
    encode_videos,
    keep_curve,
)
from inlay.container.tokens import Tokens
from inlay.container.writer import to_bytes
from inlay.fill import Filler, Lit, LitConfig
from inlay.masking import Budget
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from tests.conftest import moving_square


class Everything(Watch):
    """Keeps all that it is told of."""

    def __init__(self) -> None:
        self.networks: Counter[str] = Counter()
        self.latents: list[LatentChunk] = []
        self.tokens: list[Tokens] = []

    def on_network(self, network: str, clips: int) -> None:
        self.networks[network] += clips

    def on_latents(self, chunk: LatentChunk) -> None:
        self.latents.append(chunk)

    def on_tokens(self, tokens: Tokens) -> None:
        self.tokens.append(tokens)


@pytest.fixture(scope="module")
def tokenizer(tiny_mini: Backbone) -> Tokenizer:
    torch.manual_seed(3)
    lit = Lit.build(LitConfig(width=32, heads=1, blocks=1)).eval()
    torch.nn.init.normal_(lit.out_proj.weight, std=0.1)
    return Tokenizer(tiny_mini, filler=Filler({"lit": lit}))


@pytest.mark.parametrize("mode", MODES)
def test_networks_are_counted_by_the_clips_that_enter_them(tokenizer: Tokenizer, mode: str) -> None:
    video, seen = moving_square(70, 16, 24), Everything()
    with tokenizer.watched_by(seen):
        tokens = tokenizer.encode(video, tau=0.3, mode=mode, cuts=False)  # type: ignore[call-overload]
        chunks = len(tokens.spans)
        assert seen.networks == {"encode": chunks} and chunks == 3
        fills = with_holes(tokens)
        tokenizer.decode(tokens)
        assert seen.networks == {"encode": 3, "fill": fills, "decode": 3}
        tokenizer.decode(tokens, fill="hold")  # which is no network
        assert seen.networks == {"encode": 3, "fill": fills, "decode": 6}
    tokenizer.encode(video, tau=0.3)
    assert seen.networks["encode"] == 3, "nobody looks on after the block"


def test_latents_come_before_tokens_chunk_by_chunk(tokenizer: Tokenizer) -> None:
    seen = Everything()
    with tokenizer.watched_by(seen):
        tokens = tokenizer.encode(moving_square(70, 16, 24), tau=0.3)
    assert [chunk.span for chunk in seen.latents] == list(tokens.spans)
    assert torch.equal(torch.cat([chunk.mask for chunk in seen.tokens]), tokens.mask)
    for chunk, own in zip(seen.latents, seen.tokens, strict=True):
        assert chunk.z_BCTHW.dtype == torch.float32 and chunk.stream == 0
        assert torch.equal(chunk.z_BCTHW[0].permute(1, 2, 3, 0)[own.mask], own.values)


@pytest.mark.parametrize("budget", [Budget(tau=0.3), Budget(keep=0.5), Budget(keep=0.5, bucket_seconds=1)])
def test_a_chunk_knows_its_stream(tokenizer: Tokenizer, budget: Budget) -> None:
    videos = [moving_square(frames, 16, 24, seed=s) for s, frames in enumerate((20, 40, 70))]
    seen = Everything()
    with tokenizer.watched_by(seen):
        found = list(encode_videos(tokenizer, [iter([video]) for video in videos], budget=budget, batch=3))
    assert Counter(chunk.stream for chunk in seen.latents) == Counter(number for number, _ in found)
    assert len(seen.tokens) == len(found)
    for number, video in enumerate(videos):
        assert sum(chunk.span.frames for chunk in seen.latents if chunk.stream == number) == len(video)


@pytest.mark.parametrize("budget", [Budget(tau=0.3), Budget(keep=0.5, exact=True), Budget(bits=2.0)])
def test_a_solved_budget_tells_of_the_tokens_it_gives_and_of_no_trial(tokenizer: Tokenizer, budget: Budget) -> None:
    seen = Everything()
    with tokenizer.watched_by(seen):
        tokens = tokenizer.encode(
            moving_square(40, 16, 24), tau=budget.tau, keep=budget.keep, bits=budget.bits, exact=budget.exact
        )
    assert torch.equal(torch.cat([chunk.values for chunk in seen.tokens]), tokens.values)


def test_a_cut_makes_more_calls_and_no_more_chunks(tokenizer: Tokenizer) -> None:
    """What is encoded again because a scene ends within it counts as a call, and is shown once."""
    a, b = moving_square(20, 64, 64, speed=1, seed=1), moving_square(25, 64, 64, speed=1, seed=2)
    video, seen = Video(frames=torch.cat([a.frames, 255 - b.frames])), Everything()
    with tokenizer.watched_by(seen):
        tokens = tokenizer.encode(video, tau=0.3)
    assert [span.frames for span in tokens.spans] == [20, 25] == [chunk.span.frames for chunk in seen.latents]
    assert seen.networks["encode"] > 2


@pytest.mark.parametrize("mode", MODES)
def test_watching_changes_nothing(tokenizer: Tokenizer, mode: str) -> None:
    video, config = moving_square(70, 16, 24), EncodeConfig(mode=mode)
    alone = Tokens.join(list(Encoder(tokenizer, config, tau=0.3).encode([video])))
    pictures = [v.frames for v in Decoder(tokenizer).decode(alone.chunks())]
    with tokenizer.watched_by(Everything()), tokenizer.watched_by(Watch()):
        watched = Tokens.join(list(Encoder(tokenizer, config, tau=0.3).encode([video])))
        again = [v.frames for v in Decoder(tokenizer).decode(watched.chunks())]
    assert to_bytes(watched) == to_bytes(alone)
    assert all(torch.equal(x, y) for x, y in zip(pictures, again, strict=True))


def test_several_look_on_and_leave_in_any_way(tokenizer: Tokenizer) -> None:
    outer, inner = Everything(), Everything()
    with tokenizer.watched_by(outer):
        with pytest.raises(RuntimeError), tokenizer.watched_by(inner):
            tokenizer.encode(moving_square(5, 16, 16), tau=0.3)
            raise RuntimeError
        tokenizer.encode(moving_square(5, 16, 16), tau=0.3)
    assert (outer.networks["encode"], inner.networks["encode"]) == (2, 1)
    assert tokenizer.watches == ()


def test_the_curve_of_an_encode_is_that_of_its_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    curve = KeepCurve()
    with tokenizer.watched_by(curve):
        tokens = tokenizer.encode(moving_square(70, 16, 24), tau=0.3)
    assert curve == keep_curve(tokens.chunks()) and curve.keep_rate == pytest.approx(tokens.keep_rate)
    assert curve.end == pytest.approx(70 / float(tokens.info.fps)), "when the last frame ends"


@pytest.mark.parametrize("mode", MODES)
def test_chunks_that_keep_everything_are_not_filled(tokenizer: Tokenizer, mode: str) -> None:
    video, fills = moving_square(70, 16, 24), []
    for tau in (0.0, 0.3):
        tokens, seen = tokenizer.encode(video, tau=tau, mode=mode, cuts=False), Everything()  # type: ignore[call-overload]
        with tokenizer.watched_by(seen):
            frames = tokenizer.decode(tokens).frames
        fills.append(seen.networks["fill"])
        whole = bool(tokens.mask.all())
        assert whole == (tau == 0) == frames.equal(tokenizer.decode(tokens, fill="hold").frames)
    assert fills == [0, with_holes(tokens)]


def with_holes(tokens: Tokens) -> int:
    """Chunks that dropped something; the last of these videos is one slot of six cells, and keeps them all."""
    count = sum(not bool(chunk.mask.all()) for chunk in tokens.chunks())
    assert count == 2
    return count
