# SPDX-License-Identifier: Apache-2.0
"""Videos of one size share the network's calls, and come out as if each had been alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inlay.backbones import Backbone, State, load_backbone
from inlay.codec import MODES, Decoder, EncodeConfig, Encoder, Watch, WholeVideo, encode_videos
from inlay.codec.calls import BatchLimits, Call, Row, join_rows, join_states, run_calls, shape_of, split_state
from inlay.codec.cuts import Seen, look_at_frames, look_at_slots
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, ShapeError, VideoError
from inlay.fill import Filler, Lit, LitConfig
from inlay.masking import Budget, Profile
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from tests.conftest import moving_square, still

NINE = EncodeConfig(chunk_frames=9, cuts=False)


class Limited(torch.nn.Module):
    """A backbone that has memory for so many videos at a time, and writes down how many it was asked for."""

    def __init__(self, net: Backbone, most: int = 1000) -> None:
        super().__init__()
        self.net, self.spec, self.most = net, net.spec, most
        self.asked: list[int] = []

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        self.check(x_BCTHW)
        return self.net.encode(x_BCTHW)

    def encode_next(self, x_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
        self.check(x_BCTHW)
        return self.net.encode_next(x_BCTHW, state)

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        return self.net.decode(z_BCTHW)

    def decode_next(self, z_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
        return self.net.decode_next(z_BCTHW, state)

    def check(self, x_BCTHW: Tensor) -> None:
        self.asked.append(len(x_BCTHW))
        if len(x_BCTHW) > self.most:
            if x_BCTHW.is_cuda:
                torch.empty(1 << 44, device="cuda")  # raises as a batch that does not fit
            raise torch.OutOfMemoryError("no memory for this batch")


class Fragile(Limited):
    """A backbone that cannot stand bright pixels."""

    def check(self, x_BCTHW: Tensor) -> None:
        super().check(x_BCTHW)
        if x_BCTHW.max() > 0.99:
            raise RuntimeError("cannot be encoded")


class Batches(Watch):
    """How many videos each call of a network had."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_network(self, network: str, clips: int) -> None:
        self.seen.append(clips)


def around(backbone: Backbone, device: str = "cpu") -> Tokenizer:
    profile = Profile(backbone="mini-untrained", weight_hash=backbone.spec.weight_hash, tau=0.1)
    return Tokenizer(backbone, profile=profile, device=device)


def pieces(video: Video, size: int = 3) -> Iterator[Video]:
    for begin in range(0, len(video), size):
        yield video[begin : begin + size]


def alone(tokenizer: Tokenizer, video: Video, config: EncodeConfig = NINE) -> Tokens:
    return Tokens.join(list(Encoder(tokenizer, config).encode([video])))


def in_step(
    tokenizer: Tokenizer,
    sources: Sequence[Iterator[Video]],
    config: EncodeConfig = NINE,
    *,
    budget: Budget | None = None,
    limits: BatchLimits | None = None,
) -> list[Tokens | Exception]:
    """What became of each video, all of them in one batch."""
    chunks: list[list[Tokens]] = [[] for _ in sources]
    errors: dict[int, Exception] = {}
    for number, chunk in encode_videos(tokenizer, sources, config, budget=budget, batch=len(sources), limits=limits):
        assert number not in errors, "nothing comes of a video after its error"
        if isinstance(chunk, Exception):
            errors[number] = chunk
        else:
            chunks[number].append(chunk)
    return [errors.get(number) or Tokens.join(own) for number, own in enumerate(chunks)]


def whole(results: list[Tokens | Exception]) -> list[Tokens]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Tokens)]


def same_decisions(a: Tokens, b: Tokens) -> None:
    """Cells within a rounding of tau may fall on either side of it; what both keep is the same."""
    assert a.spans == b.spans and a.recipe == b.recipe
    assert (a.mask != b.mask).float().mean() < 0.01
    both = a.mask & b.mask
    torch.testing.assert_close(a.values[both[a.mask]], b.values[both[b.mask]], atol=2e-3, rtol=2e-3)


# --- videos in step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_together_as_alone(tiny_tokenizer: Tokenizer, mode: str) -> None:
    config = replace(NINE, mode=mode)
    videos = [moving_square(frames, 32, 32, seed=s) for s, frames in enumerate((20, 20, 9, 31))]
    seen = Batches()
    with tiny_tokenizer.watched_by(seen):
        got = whole(in_step(tiny_tokenizer, [pieces(video) for video in videos], config))
    for video, tokens in zip(videos, got, strict=True):
        same_decisions(alone(tiny_tokenizer, video, config), tokens)
    assert max(seen.seen) == 4


@pytest.mark.parametrize("budget", [Budget(keep=0.4), Budget(keep=0.4, exact=True), Budget(tokens=60), Budget(bits=2)])
def test_budgets_of_whole_videos_are_each_videos_own(tiny_tokenizer: Tokenizer, budget: Budget) -> None:
    videos = [moving_square(frames, 32, 32, seed=s) for s, frames in enumerate((20, 20, 31))]
    got = whole(in_step(tiny_tokenizer, [pieces(video) for video in videos], budget=budget))
    for video, tokens in zip(videos, got, strict=True):
        with WholeVideo.of(tiny_tokenizer, [video], NINE) as own:
            wanted = Tokens.join(list(own.solve(budget)))
        assert wanted.spans == tokens.spans
        assert len(tokens) == pytest.approx(len(wanted), rel=0.05)
        if budget.tokens is not None:
            assert len(tokens) == budget.tokens


def test_a_budget_that_one_video_cannot_keep_ends_that_one(tiny_tokenizer: Tokenizer) -> None:
    videos = [moving_square(9, 32, 32), moving_square(9, 64, 64), moving_square(9, 32, 32, seed=1)]
    first, second, third = in_step(tiny_tokenizer, [pieces(video) for video in videos], budget=Budget(tokens=30))
    assert isinstance(second, ConfigError) and "kept whole" in str(second)
    assert isinstance(first, Tokens) and isinstance(third, Tokens) and len(first) == len(third) == 30


def test_a_budget_in_decibels_is_refused(tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="not decoded") as caught:
        list(encode_videos(tiny_tokenizer, [pieces(still(5, 16, 16))], budget=Budget(psnr=30)))
    assert caught.value.about == ("psnr",)


def test_who_shares_a_call_is_never_chance(tiny_tokenizer: Tokenizer) -> None:
    sizes = ((32, 32), (32, 48), (32, 32), (32, 32))
    videos = [moving_square(13, *size, seed=s) for s, size in enumerate(sizes)]
    calls, results = set(), set()
    for size in (1, 3, 5, 13):
        seen = Batches()
        with tiny_tokenizer.watched_by(seen):
            got = whole(in_step(tiny_tokenizer, [pieces(video, size) for video in videos]))
        calls.add(tuple(seen.seen))
        results.add(b"".join(tokens.values.numpy().tobytes() for tokens in got))
    assert calls == {(3, 1, 3, 1)}
    assert len(results) == 1


def test_the_batch_is_what_was_asked_for(tiny_tokenizer: Tokenizer) -> None:
    videos = [moving_square(9, 16, 16, seed=s) for s in range(5)]
    seen = Batches()
    with tiny_tokenizer.watched_by(seen):
        list(encode_videos(tiny_tokenizer, [pieces(video) for video in videos], NINE, batch=2))
        list(encode_videos(tiny_tokenizer, [pieces(video) for video in videos], NINE))
    assert seen.seen == [2, 2, 1, *[1] * 5]  # one at a time on a CPU, where a batch gains nothing


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [Budget(), Budget(keep=0.5)])
def test_an_error_reaches_only_its_own_video(tiny_tokenizer: Tokenizer, budget: Budget) -> None:
    good = moving_square(20, 32, 32)

    def unreadable() -> Iterator[Video]:
        yield good[:9]
        raise VideoError("the rest cannot be read")

    def changing() -> Iterator[Video]:
        yield good[:5]
        yield moving_square(5, 32, 48)

    sources = [pieces(good), unreadable(), pieces(good), changing(), iter(())]
    results: list[list[Tokens | Exception]] = [[] for _ in sources]
    for number, chunk in encode_videos(tiny_tokenizer, sources, NINE, budget=budget, batch=5):
        results[number].append(chunk)
    wanted = [len(tokens) for tokens in results[0] if isinstance(tokens, Tokens)]
    assert len(wanted) == 3 and [len(tokens) for tokens in results[2] if isinstance(tokens, Tokens)] == wanted
    assert isinstance(results[1][-1], VideoError) and sum(isinstance(r, Exception) for r in results[1]) == 1
    assert isinstance(results[3][-1], ShapeError) and "one size" in str(results[3][-1])
    assert not any(isinstance(result, Tokens) for result in results[4])


def test_one_that_fails_in_a_batch_fails_alone() -> None:
    tokenizer = around(Fragile(load_backbone("mini-untrained")))
    bright = Video(frames=torch.full((9, 32, 32, 3), 255, dtype=torch.uint8))
    videos = [still(9, 32, 32), bright, still(9, 32, 32, seed=1)]
    first, second, third = in_step(tokenizer, [pieces(video) for video in videos])
    assert isinstance(first, Tokens) and isinstance(third, Tokens)
    assert str(second) == "cannot be encoded"
    assert tokenizer.backbone.asked == [3, 1, 1, 1]  # type: ignore[attr-defined]


def test_a_batch_that_does_not_fit_is_halved() -> None:
    backbone = load_backbone("mini-untrained")
    tokenizer, limits = around(Limited(backbone, 2)), {}
    videos = [moving_square(17, 32, 32, seed=s) for s in range(5)]
    got = whole(in_step(tokenizer, [pieces(video) for video in videos], limits=limits))
    for video, tokens in zip(videos, got, strict=True):
        same_decisions(alone(around(backbone), video), tokens)
    asked = tokenizer.backbone.asked  # type: ignore[attr-defined]
    assert asked[:5] == [5, 3, 2, 2, 1]
    assert asked.count(5) == asked.count(3) == len(limits)  # each kind of call fails once at each size, and never again
    assert set(limits.values()) == {2}
    asked.clear()
    whole(in_step(tokenizer, [pieces(video) for video in videos], limits=limits))
    assert max(asked) == 2, "what was learnt is kept by whoever calls again"


def test_a_video_that_does_not_fit_even_alone_does_not_stop_the_others() -> None:
    class Small(Limited):
        def check(self, x_BCTHW: Tensor) -> None:
            self.most = 0 if x_BCTHW.shape[-1] > 32 else 1000
            super().check(x_BCTHW)

    tokenizer = around(Small(load_backbone("mini-untrained")))
    videos = [moving_square(9, 32, width) for width in (48, 32, 48)]
    first, second, third = in_step(tokenizer, [pieces(video) for video in videos])
    assert isinstance(first, torch.OutOfMemoryError) and isinstance(third, torch.OutOfMemoryError)
    assert isinstance(second, Tokens)


def test_calls_are_answered_each_by_its_own(tiny_tokenizer: Tokenizer) -> None:
    shapes = [(5, 32, 32, 3), (5, 32, 32, 4), (5, 32, 32, 3)]  # no frame has four colours
    calls = [Call(pieces=[torch.zeros(shape, dtype=torch.uint8)], carries=False) for shape in shapes]
    run_calls(tiny_tokenizer, calls, {}, most=8)
    assert [type(call.error) for call in calls] == [type(None), ShapeError, type(None)]
    assert calls[0].z_BCTHW is not None and calls[0].z_BCTHW.shape == (1, 16, 2, 4, 4)


def test_what_a_batch_left_is_used_as_it_is_by_the_same_streams_alone() -> None:
    state: State = [torch.arange(3.0)[:, None].expand(3, 2).clone()]
    seen = [torch.arange(3.0).view(3, 1, 1), torch.arange(3).view(3, 1, 1)]
    joint = (state, seen)
    rows = [Row(joint=joint, index=i, count=3) for i in range(3)]
    assert join_rows(rows) is joint and join_rows([None, None]) is None
    turned = join_rows(rows[::-1])
    assert turned is not None and turned[1] is not None
    assert turned[0][0][:, 0].tolist() == [2, 1, 0] and turned[1][1].flatten().tolist() == [2, 1, 0]  # type: ignore[index]
    fewer = join_rows(rows[1:2])
    assert fewer is not None and fewer[0][0].tolist() == [[1, 1]]  # type: ignore[index, union-attr]
    assert rows[0].kind == Row(joint=([state[0][:1]], None), index=0, count=1).kind, "who was beside it does not count"


def look(z_BCTHW: Tensor, frames_BFHWC: Tensor, seen: Seen | None) -> tuple[Tensor, Seen]:
    changes, slot = look_at_slots(z_BCTHW, seen)
    jumps, thumb = look_at_frames(frames_BFHWC, seen)
    return torch.cat([changes, jumps], dim=1), [slot, thumb]


def test_chunks_are_measured_together_as_each_alone() -> None:
    g = torch.Generator().manual_seed(3)
    z = torch.rand(2, 16, 3, 6, 8, generator=g)
    frames = torch.randint(0, 256, (2, 9, 40, 56, 3), dtype=torch.uint8, generator=g)
    first, seen = look(z[:, :, :2], frames[:, :5], None)
    then, _ = look(z[:, :, 2:], frames[:, 5:], seen)
    whole, _ = look(z, frames, None)
    both = torch.cat([first[:, :2], then[:, :1], first[:, 2:4], then[:, 1:2], first[:, 4:], then[:, 2:]], dim=1)
    assert torch.equal(both, whole) and whole[:, 0].tolist() == [0, 0]
    for i in range(2):
        assert torch.equal(look(z[i : i + 1], frames[i : i + 1], None)[0][0], whole[i])


@pytest.mark.gpu
@pytest.mark.parametrize("most", [8, 2])
def test_a_batch_on_a_gpu_decides_as_the_cpu_does(most: int) -> None:
    """With memory for all, and with memory for two only."""
    on_cpu = around(load_backbone("mini-untrained"))
    on_gpu = around(Limited(load_backbone("mini-untrained", device="cuda"), most), "cuda")
    videos = [moving_square(17, 32, 32, seed=s) for s in range(5)]
    with exact_float32():
        got = whole(in_step(on_gpu, [pieces(video) for video in videos]))
    for video, tokens in zip(videos, got, strict=True):
        same_decisions(alone(on_cpu, video), tokens)
    asked = on_gpu.backbone.asked  # type: ignore[attr-defined]
    assert max(n for n in asked if n <= most) == min(most, 5)


@contextmanager
def exact_float32() -> Iterator[None]:
    """Without the ten bits that matrix units of a GPU round to."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


# --- states -----------------------------------------------------------------------------------------------------------


def test_states_join_and_split() -> None:
    states: list[State] = [[torch.full((2, 3), float(i)), (torch.full((1,), float(i)),)] for i in range(3)]
    together = join_states(states)
    assert shape_of(together) == ((6, 3), ((3,),))
    for before, after in zip(states, split_state(together, 3), strict=True):
        assert isinstance(before, list) and isinstance(after, list) and isinstance(after[1], tuple)
        assert torch.equal(before[0], after[0]) and torch.equal(before[1][0], after[1][0])  # type: ignore[arg-type, index]
    assert join_states([None, None]) is None and split_state(None, 2) == [None, None]
    assert shape_of(None) is None and shape_of([torch.zeros(1), "own"]) is None  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["mini", "cosmos"])
def test_states_of_networks_can_be_laid_side_by_side(name: str) -> None:
    """What joining and splitting take for granted: videos are the outermost axis of every tensor of a state."""
    from tests.units.test_cosmos import tiny

    network = tiny() if name == "cosmos" else load_backbone("mini-untrained")
    x = torch.rand(3, 3, 13, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.inference_mode():
        apart = []
        for own in x.split(1):
            _, state = network.encode_next(own[:, :, :5], None)
            apart.append((network.encode_next(own[:, :, 5:], state)[0], state))
        state = join_states([own for _, own in apart])
        z, _ = network.encode_next(x[:, :, 5:], state)
        again = split_state(network.encode_next(x[:, :, :5], None)[1], 3)
        later = torch.cat([network.encode_next(x[i : i + 1, :, 5:], again[i])[0] for i in range(3)])
    wanted = torch.cat([latent for latent, _ in apart])
    torch.testing.assert_close(z, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(later, wanted, atol=1e-4, rtol=1e-4)


# --- streams that are pushed ------------------------------------------------------------------------------------------


def scenes(first: int, frames: int, seed: int) -> Video:
    """A video with a hard cut after `first` frames."""
    a, b = (
        moving_square(first, 64, 64, speed=1, seed=seed),
        moving_square(frames - first, 64, 64, speed=1, seed=9 + seed),
    )
    return Video(frames=torch.cat([a.frames, 255 - b.frames]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("criterion", ["latent-l1", "pixel-l1"])
def test_streams_in_step_equal_encoders_of_their_own(tiny_tokenizer: Tokenizer, mode: str, criterion: str) -> None:
    """Scene cuts at different places, videos of different lengths, pieces of different sizes."""
    config, tau = EncodeConfig(mode=mode, criterion=criterion), 0.3 if criterion == "latent-l1" else 0.05
    videos = [scenes(14, 70, 1), scenes(41, 45, 2), moving_square(70, 64, 64)]
    single = [Tokens.join(list(Encoder(tiny_tokenizer, config, tau=tau).encode([video]))) for video in videos]
    assert [[span.key for span in tokens.spans].count(True) for tokens in single] != [1, 1, 1]
    encoder = Encoder(tiny_tokenizer, config, tau=tau, streams=3, batch=1)
    for _ in range(2):  # flushing ends the videos, and others begin
        parts: list[list[Tokens]] = [[], [], []]
        feeds = [pieces(video, size) for video, size in zip(videos, (5, 9, 16), strict=True)]
        while any(given := [next(feed, None) for feed in feeds]):
            for own, more in zip(parts, encoder.push_all(given), strict=True):
                own += more
        for own, more in zip(parts, encoder.flush_all(), strict=True):
            own += more
        for wanted, own in zip(single, parts, strict=True):
            got = Tokens.join(own)
            assert got.spans == wanted.spans and got.recipe == wanted.recipe
            assert got.mask.equal(wanted.mask) and got.values.equal(wanted.values)


@pytest.mark.parametrize(
    ("config", "budget"),
    [
        (EncodeConfig(noise=True), Budget(tau=0.3)),
        (EncodeConfig(reference="previous"), Budget(tau=0.3)),
        (EncodeConfig(), Budget(keep=0.3, bucket_seconds=1)),
        (EncodeConfig(), Budget(bits=0.2, bucket_seconds=1)),
    ],
    ids=["noise", "previous", "keep", "bits"],
)
def test_streams_in_step_remember_each_for_itself(
    tiny_tokenizer: Tokenizer, config: EncodeConfig, budget: Budget
) -> None:
    videos = [moving_square(70, 32, 32, seed=s, speed=1 + s) for s in range(3)]
    encoder = Encoder(tiny_tokenizer, config, budget=budget, streams=3, batch=1)
    parts = [a + b for a, b in zip(encoder.push_all(videos), encoder.flush_all(), strict=True)]
    for video, own in zip(videos, parts, strict=True):
        wanted, got = list(Encoder(tiny_tokenizer, config, budget=budget).encode([video])), own
        assert [t.recipe for t in got] == [t.recipe for t in wanted]
        assert all(a.mask.equal(b.mask) and a.values.equal(b.values) for a, b in zip(got, wanted, strict=True))


def test_an_error_of_one_stream_is_raised_where_streams_are_pushed(tiny_tokenizer: Tokenizer) -> None:
    encoder = Encoder(tiny_tokenizer, tau=0.1, streams=2)
    encoder.push_all([still(3, 16, 16), still(3, 16, 16)])
    with pytest.raises(ShapeError, match="one size"):
        encoder.push_all([still(3, 16, 16), still(3, 16, 24)])
    encoder.reset()
    assert [len(own) for own in encoder.push_all([still(33, 16, 16)] * 2)] == [1, 1]


@pytest.mark.parametrize("fill", ["hold", "linear", "lit", "lit-paper"])
@pytest.mark.parametrize("mode", MODES)
def test_decoders_in_step_equal_decoders_of_their_own(tiny_mini: Backbone, mode: str, fill: str) -> None:
    lits = {}
    for name, kind in (("lit", "plus"), ("lit-paper", "paper")):
        lits[name] = Lit.build(LitConfig(kind=kind, width=64, heads=2, blocks=1)).eval()
        torch.nn.init.normal_(lits[name].out_proj.weight, std=0.1)
    tokenizer = Tokenizer(tiny_mini, filler=Filler(lits))
    config = EncodeConfig(mode=mode)
    videos = [scenes(14, 70, 1), moving_square(70, 64, 64, speed=1), moving_square(70, 40, 64)]
    files = [list(Encoder(tokenizer, config, tau=0.3).encode([video])) for video in videos]
    files[0] = files[0][: len(files[1])]
    assert {len(file) for file in files} == {3}
    decoder = Decoder(tokenizer, fill=fill, streams=3)
    single = [Decoder(tokenizer, fill=fill) for _ in files]
    for chunks in zip(*files, strict=True):
        for own, tokens, got in zip(single, chunks, decoder.push_all(chunks), strict=True):
            wanted = own.push(tokens)
            assert got.frames.shape == wanted.frames.shape
            assert (got.frames.int() - wanted.frames.int()).abs().max() <= 1  # a rounding of a pixel either way


# --- the data-set job -------------------------------------------------------------------------------------------------


def test_a_batch_of_files_is_the_same_every_time(tmp_path: Path) -> None:
    from inlay.scale.config import TokenizeConfig
    from inlay.scale.plan import Shard
    from inlay.scale.sources import find_sources
    from inlay.scale.worker import Task, Worker
    from inlay.video import write_video

    (tmp_path / "in").mkdir()
    for i in range(7):
        write_video(moving_square(9, 32, 48 if i in (2, 5) else 32, seed=i), tmp_path / f"in/{i}.mp4")
    (tmp_path / "in/3.mp4").write_bytes(b"no video")
    items = tuple(find_sources(str(tmp_path / "in")))
    config = TokenizeConfig(backbone="mini-untrained", tau=0.1)
    records = []
    for out in ("a", "b"):
        task = Task(
            out=str(tmp_path / out), config=config, device="cpu", threads=torch.get_num_threads(), batch=3, run=""
        )
        (tmp_path / out / "job").mkdir(parents=True)
        records.append(Worker(task).run(Shard(number=0, first=0, items=items)))
    assert records[0] == records[1]
    assert [v.source for v in records[0].videos] == [f"{i}.mp4" for i in (0, 1, 2, 4, 5, 6)]
    assert len(records[0].refused) == 1
