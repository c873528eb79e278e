# SPDX-License-Identifier: Apache-2.0
"""The codec with recorded calls, as a GPU has them: the tokens and frames of the plain one. And how tokens travel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inlay.backbones import load_backbone
from inlay.codec import MODES, Decoder, EncodeConfig, Encoder, LatentDecoder, placing
from inlay.container.tokens import Tokens
from inlay.errors import UsageError
from inlay.fill import Filler, Lit, LitConfig
from inlay.kernels import Branch, Replay
from inlay.kernels.rule import PATHS
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video, to_frames
from tests.conftest import moving_square
from tests.units.test_kernels_replay import Takes, held


def made() -> Tokenizer:
    torch.manual_seed(0)
    lit = Lit.build(LitConfig(channels=16, width=64, blocks=2, heads=2, window=4)).eval().requires_grad_(False)
    torch.nn.init.normal_(lit.out_proj.weight, std=0.02)
    return Tokenizer(load_backbone("mini-untrained"), filler=Filler({"lit": lit}))


def coded(tokenizer: Tokenizer, mode: str, videos: list[Video]) -> tuple[list[list[Tokens]], list[list[Video]]]:
    """Videos in step, there and back."""
    encoder = Encoder(tokenizer, EncodeConfig(mode=mode, chunk_frames=9), tau=0.3, streams=len(videos), batch=8)
    rows = [a + b for a, b in zip(encoder.push_all(videos), encoder.flush_all(), strict=True)]
    decoder = Decoder(tokenizer, streams=len(videos))
    return rows, list(decoder.decode_all(zip(*rows, strict=True)))


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_recorded_calls_give_the_plain_answer(mode: str, streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    videos = [moving_square(45, 28, 36, seed=seed, speed=1 + seed) for seed in range(streams)]
    plain_tokens, plain_videos = coded(made(), mode, videos)

    takes, tokenizer = Takes(), made()
    monkeypatch.setitem(PATHS, "graphs", replace(PATHS["graphs"], device="cpu", needs=("on",)))
    monkeypatch.setattr(placing, "_replay", Replay(placing.lay_out))
    calls = {
        "encode": tokenizer._encode_frames,
        "keep": tokenizer._keep_cells,
        "place": placing._replay,
        "fill": tokenizer.filler._replays["lit"],
        "decode": tokenizer._decode_frames,
    }
    for call in calls.values():
        call.capture = takes
    tokens, shown = coded(tokenizer, mode, videos)
    assert {name: held(call) > 0 for name, call in calls.items()} == dict.fromkeys(calls, True)
    assert not any(call.refused for call in calls.values()) and takes.plays > len(calls)
    for row, want in zip(tokens, plain_tokens, strict=True):
        for a, b in zip(row, want, strict=True):
            assert a.mask.equal(b.mask) and a.values.equal(b.values) and a.spans == b.spans
    for frames, want_frames in zip(shown, plain_videos, strict=True):
        assert all(a.frames.equal(b.frames) for a, b in zip(frames, want_frames, strict=True))


def some_tokens(mode: str = "stateful", *, streams: int = 3) -> list[list[Tokens]]:
    videos = [moving_square(27, 24, 40, seed=seed, speed=2 + seed) for seed in range(streams)]
    return coded(made(), mode, videos)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_placed_as_they_lie_in_their_dense_form(dtype: torch.dtype) -> None:
    filler = Filler(dtype=dtype)
    chunks = [row[0] for row in some_tokens()]
    z, keep, kept_last, lead = placing.place(filler, chunks, None)
    want = torch.cat([tokens.dense() for tokens in chunks]).to(dtype)
    assert torch.equal(z, want) and z.is_contiguous() and z.dtype == dtype and lead == 0
    assert torch.equal(keep, torch.stack([tokens.mask for tokens in chunks]))
    for row, tokens in enumerate(chunks):
        alone = placing.place(filler, [tokens], None)
        assert all(torch.equal(a, b[row : row + 1]) for a, b in zip(alone[:3], (z, keep, kept_last), strict=True))


@pytest.mark.parametrize("kept", ["none", "one", "last"])
def test_few_cells_and_what_memory_held(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room that no kept cell takes is never read, whatever it holds."""
    (tokens,), shape = some_tokens(streams=1)[0][1:2], (2, 3, 4)
    mask = torch.zeros(shape, dtype=torch.bool)
    if kept != "none":
        mask.view(-1)[0 if kept == "one" else -1] = True
    values = torch.full((int(mask.sum()), 16), 5.0, dtype=torch.float16)
    few = replace(tokens, mask=mask, values=values, spans=(replace(tokens.spans[0], slots=2),))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory, **k: empty(*a, **k).fill_(255))  # float16 of 255s: NaN
    z, keep, kept_last, _ = placing.place(Filler(), [few], torch.ones(1, 16, 3, 4))
    monkeypatch.undo()
    assert torch.equal(keep[:, 1:], mask[None]) and keep[:, 0].all(), "the past leads"
    assert torch.equal(z[:, :, 1:], few.dense().float()) and bool((z[:, :, 0] == 1).all())
    assert torch.equal(kept_last, torch.where(mask.any(0), 5.0, 1.0).expand(1, 16, 3, 4))


def test_streams_of_other_true_sizes_keep_theirs() -> None:
    """Grids of one shape may stand for pictures of several sizes."""
    tokenizer = made()
    videos = [moving_square(9, height, width, seed=1) for height, width in ((24, 40), (20, 40), (24, 33))]
    rows = [list(Encoder(tokenizer, tau=0.05).encode([video])) for video in videos]
    shown = next(iter(Decoder(tokenizer, streams=3).decode_all(zip(*rows, strict=True))))
    for video, row, back in zip(videos, rows, shown, strict=True):
        assert back.frames.shape == video.frames.shape
        assert back.frames.equal(Decoder(tokenizer).push(row[0]).frames)


def test_streams_may_part_and_meet_again() -> None:
    tokenizer, rows = made(), some_tokens()
    want = [list(Decoder(tokenizer).decode(row)) for row in rows]
    decoder = Decoder(tokenizer, streams=3)
    decoder.push_all([row[0] for row in rows])
    decoder.push_all([rows[0][1], rows[1][0], rows[2][1]])  # the second begins anew
    shown = decoder.push_all([rows[0][2], rows[1][1], rows[2][2]])
    for video, own, at in zip(shown, want, (2, 1, 2), strict=True):
        off = (video.frames.int() - own[at].frames.int()).abs()
        assert off.max() <= 1 and off.float().mean() < 0.01, "a product of a batch rounds in its own order"


def test_a_chunk_that_goes_on_needs_the_one_before() -> None:
    tokenizer, ((_, second, *_),) = made(), some_tokens(streams=1)
    for push in (Decoder(tokenizer).push, LatentDecoder(tokenizer.filler).push):
        with pytest.raises(UsageError, match="begin at a key chunk"):
            push(second)


@torch.inference_mode()
def test_frames_leave_the_decoder_as_they_were_made_of_its_pixels(tiny_tokenizer: Tokenizer) -> None:
    z = torch.randn(2, 16, 3, 4, 5)
    x, after = tiny_tokenizer.decode_next(z, None)
    frames, state = tiny_tokenizer.decode_frames(z, True, 30, 33, None)
    assert torch.equal(frames, to_frames(x[..., :30, :33])) and frames.is_contiguous()
    assert all(torch.equal(a, b) for a, b in zip(tensors(after), tensors(state), strict=True))
    assert tiny_tokenizer.decode_frames(z, False, 30, 33, None)[1] is None


def tensors(state: object) -> list[Tensor]:
    assert isinstance(state, list)
    return state


@pytest.mark.gpu
def test_a_branch_runs_beside_the_rest_on_a_gpu() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        beside = Branch(x)
        with beside:
            sums = (x * 3).cumsum(0)
        y = x.sin().sin()
        beside.join()
        return y + sums, sums

    replay: Replay[[Tensor], tuple[Tensor, Tensor]] = Replay(twice)
    with torch.inference_mode():
        for seed in range(6):
            x = torch.randn(1000, 100, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
            assert all(torch.equal(a, b) for a, b in zip(replay(x), twice(x), strict=True))
    assert held(replay) and not replay.refused, replay.refused
