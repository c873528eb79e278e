# SPDX-License-Identifier: Apache-2.0
"""Chunks launched ahead, as a GPU has them: the same tokens and frames, cuts or not, one stream or several."""

from __future__ import annotations

import pytest
import torch

from inlay.codec import MODES, Decoder, EncodeConfig, Encoder, Parts
from inlay.container.tokens import Tokens
from inlay.masking import Budget
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from tests.conftest import moving_square


@pytest.fixture(params=[1, 2, 5])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(Parts, "ahead", property(lambda parts: request.param))
    return request.param


def scenes(*frames: int) -> Video:
    """A hard cut after each number of frames."""
    parts = [moving_square(n, 48, 64, speed=1 + i, seed=7 * i).frames for i, n in enumerate(frames)]
    return Video(frames=torch.cat([255 - part if i % 2 else part for i, part in enumerate(parts)]))


def encoded(tokenizer: Tokenizer, config: EncodeConfig, video: Video, budget: Budget) -> Tokens:
    return Tokens.join(list(Encoder(tokenizer, config, budget=budget).encode([video[:50], video[50:51], video[51:]])))


def same(a: Tokens, b: Tokens) -> bool:
    return a.spans == b.spans and a.mask.equal(b.mask) and a.values.equal(b.values)


VIDEOS = [scenes(90), scenes(37, 40, 30), scenes(9, 60, 13, 33), scenes(33, 33, 33)]
BUDGETS = [Budget(tau=0.3), Budget(keep=0.4, bucket_seconds=2)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget.kind)
def test_launching_ahead_changes_nothing(tiny_tokenizer: Tokenizer, mode: str, budget: Budget, ahead: int) -> None:
    config = EncodeConfig(mode=mode, chunk_frames=9, key_seconds=2)
    for video in VIDEOS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Parts, "ahead", property(lambda parts: 0))
            want = encoded(tiny_tokenizer, config, video, budget)
            frames = tiny_tokenizer.decode(want).frames
        assert same(encoded(tiny_tokenizer, config, video, budget), want)
        shown = list(Decoder(tiny_tokenizer).decode(want.chunks()))
        assert torch.cat([part.frames for part in shown]).equal(frames)


def test_cuts_are_found(tiny_tokenizer: Tokenizer, ahead: int) -> None:
    tokens = encoded(tiny_tokenizer, EncodeConfig(chunk_frames=9, key_seconds=0), VIDEOS[1], BUDGETS[0])
    starts = [sum(span.frames for span in tokens.spans[:i]) for i, span in enumerate(tokens.spans) if span.key]
    assert starts == [0, 37, 77]


def test_streams_in_step_and_ahead(tiny_tokenizer: Tokenizer, ahead: int) -> None:
    config = EncodeConfig(chunk_frames=9)
    encoder = Encoder(tiny_tokenizer, config, tau=0.3, streams=len(VIDEOS), batch=1)
    made: list[list[Tokens]] = [[] for _ in VIDEOS]
    for begin in range(0, 120, 13):
        pieces = [video[begin : begin + 13] if begin < len(video) else None for video in VIDEOS]
        for own, fresh in zip(made, encoder.push_all(pieces), strict=True):
            own += fresh
    for own, rest in zip(made, encoder.flush_all(), strict=True):
        own += rest
    for own, video in zip(made, VIDEOS, strict=True):
        assert same(Tokens.join(own), encoded(tiny_tokenizer, config, video, BUDGETS[0]))
