# SPDX-License-Identifier: Apache-2.0
"""Videos of one size share the network's calls, and come out as if each had been alone, whoever was first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from inlay.scale.together import Room, Together, joined, split
from torch import Tensor

from inlay.backbones import load_backbone
from inlay.codec import EncodeConfig, Encoder
from inlay.container.tokens import Tokens
from inlay.masking import Profile
from inlay.scale.config import TokenizeConfig
from inlay.scale.encode import Pass
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from tests.conftest import moving_square


class Counting(torch.nn.Module):
    """A backbone that writes down how many videos each call had."""

    def __init__(self) -> None:
        super().__init__()
        self.net = load_backbone("mini-untrained")
        self.spec = self.net.spec
        self.batches: list[int] = []

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        self.batches.append(len(x_BCTHW))
        return self.net.encode(x_BCTHW)

    def encode_next(self, x_BCTHW: Tensor, state: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        self.batches.append(len(x_BCTHW))
        return self.net.encode_next(x_BCTHW, state)

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        return self.net.decode(z_BCTHW)


@pytest.fixture
def tokenizer() -> Tokenizer:
    backbone = Counting()
    profile = Profile(backbone="mini-untrained", weight_hash=backbone.spec.weight_hash, tau=0.1)
    return Tokenizer(backbone, profile=profile)  # type: ignore[arg-type]


def encode(tokenizer: Tokenizer, video: Video, config: EncodeConfig, *, slowly: bool = False) -> Tokens:
    encoder = Encoder(tokenizer, config)
    parts = []
    for begin in range(0, len(video), 3):
        if slowly:
            time.sleep(random.random() * 0.003)
        parts += encoder.push(video[begin : begin + 3])
    return Tokens.join(parts + encoder.flush())


@pytest.mark.parametrize("mode", ["stateful", "dual-cache", "clips"])
def test_together_as_alone(tokenizer: Tokenizer, mode: str) -> None:
    config = EncodeConfig(mode=mode, chunk_frames=9, cuts=False)
    videos = [moving_square(frames, 32, 32, seed=s) for s, frames in enumerate((20, 20, 9, 31))]
    alone = [encode(tokenizer, video, config) for video in videos]
    tokenizer.backbone.batches.clear()  # type: ignore[attr-defined]
    jobs = [partial(encode, video=video, config=config, slowly=True) for video in videos]
    got = Together(tokenizer, len(jobs)).run(jobs)
    for a, b in zip(alone, got, strict=True):
        assert a.spans == b.spans
        torch.testing.assert_close(a.dense(), b.dense(), atol=1e-3, rtol=1e-3)
    assert max(tokenizer.backbone.batches) == 4  # type: ignore[attr-defined]


def test_who_shares_a_call_is_never_chance(tokenizer: Tokenizer) -> None:
    config = EncodeConfig(chunk_frames=9)
    sizes = ((32, 32), (32, 48), (32, 32), (32, 32))
    videos = [moving_square(13, *size, seed=s) for s, size in enumerate(sizes)]
    jobs = [partial(encode, video=video, config=config, slowly=True) for video in videos]
    seen, results = set(), set()
    for _ in range(4):
        tokenizer.backbone.batches.clear()  # type: ignore[attr-defined]
        got = Together(tokenizer, len(jobs)).run(jobs)
        seen.add(tuple(tokenizer.backbone.batches))  # type: ignore[attr-defined]
        results.add(b"".join(t.values.numpy().tobytes() for t in got))
    assert seen == {(3, 1, 3, 1)}
    assert len(results) == 1


def test_an_error_reaches_the_video_that_made_it(tokenizer: Tokenizer) -> None:
    def broken(own: Tokenizer) -> str:
        try:
            own.backbone.encode(torch.zeros(1, 3, 4, 32, 32))
        except Exception as error:
            return type(error).__name__
        return "no error"

    def sound(own: Tokenizer) -> str:
        return str(tuple(own.backbone.encode(torch.zeros(1, 3, 5, 32, 32)).shape))

    assert Together(tokenizer, 3).run([sound, broken, sound]) == ["(1, 16, 2, 4, 4)", "ShapeError", "(1, 16, 2, 4, 4)"]


def encode_alone_and_together(
    tokenizer: Tokenizer, reference: Tokenizer, room: Room, count: int
) -> tuple[list[Tokens], list[Tokens]]:
    """As `inlay tokenize` does it: the same videos one by one with `reference`, then as a batch with `tokenizer`."""
    config = TokenizeConfig(backbone="mini-untrained", tau=0.1, chunk_frames=9, cuts=False)
    videos = [moving_square(17, 32, 32, seed=s) for s in range(count)]
    alone = [Tokens.join(list(Pass(reference, config).chunks([video]))) for video in videos]
    jobs = [lambda own, v=v: Tokens.join(list(Pass(own, config).chunks([v]))) for v in videos]
    return alone, Together(tokenizer, count, room).run(jobs)


def same_decisions(a: Tokens, b: Tokens) -> None:
    """Cells within a rounding of tau may fall on either side of it; what both keep is the same."""
    assert (a.mask != b.mask).float().mean() < 0.01
    both = a.mask & b.mask
    torch.testing.assert_close(a.values[both[a.mask]], b.values[both[b.mask]], atol=2e-3, rtol=2e-3)


def too_large(tokenizer: Tokenizer, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A network that cannot take more than so many videos; the sizes it was asked for."""
    asked: list[int] = []

    def limited(name: str) -> Callable[..., Any]:
        real = getattr(tokenizer.backbone, name)

        def call(x_BCTHW: Tensor, *state: Any) -> Any:
            asked.append(len(x_BCTHW))
            if len(x_BCTHW) > most:
                if x_BCTHW.is_cuda:
                    torch.empty(1 << 44, device="cuda")  # raises as a batch that does not fit
                raise torch.OutOfMemoryError("no memory for this batch")
            return real(x_BCTHW, *state)

        return call

    for name in ("encode", "encode_next"):
        monkeypatch.setattr(tokenizer.backbone, name, limited(name))
    return asked


def test_a_batch_that_does_not_fit_is_halved(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Tokenizer(tokenizer.backbone.net, profile=tokenizer.profile)  # type: ignore[attr-defined]
    asked = too_large(tokenizer, 2, monkeypatch)
    room: Room = {}
    for a, b in zip(*encode_alone_and_together(tokenizer, plain, room, 5), strict=True):
        same_decisions(a, b)
    assert asked[:5] == [5, 3, 2, 2, 1]
    assert asked.count(5) == asked.count(3) == len(room)  # each kind of call fails once at each size, and never again
    assert set(room.values()) == {2}


def test_a_video_that_does_not_fit_even_alone_does_not_stop_the_others(tokenizer: Tokenizer) -> None:
    def call(own: Tokenizer) -> str:
        try:
            own.backbone.encode(torch.zeros(1, 3, 5, 32, 32))
            return "encoded"
        except torch.OutOfMemoryError:
            return "too large"

    tokenizer.backbone.encode = lambda x: (_ for _ in ()).throw(torch.OutOfMemoryError("full"))  # type: ignore
    assert Together(tokenizer, 3).run([call] * 3) == ["too large"] * 3


def test_one_that_fails_in_a_batch_fails_alone(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tokenizer.backbone.encode

    def fragile(x_BCTHW: Tensor) -> Tensor:
        if x_BCTHW.max() > 0.5:
            raise RuntimeError("cannot be encoded")
        return real(x_BCTHW)

    def call(own: Tokenizer, level: float) -> str:
        try:
            own.backbone.encode(torch.full((1, 3, 5, 32, 32), level))
            return "encoded"
        except RuntimeError as error:
            return str(error)

    monkeypatch.setattr(tokenizer.backbone, "encode", fragile)
    jobs = [partial(call, level=level) for level in (0.0, 0.9, 0.1)]
    assert Together(tokenizer, 3).run(jobs) == ["encoded", "cannot be encoded", "encoded"]


@pytest.mark.gpu
@pytest.mark.parametrize("most", [8, 2])
def test_a_batch_on_a_gpu_decides_as_the_cpu_does(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for all, and with memory for two only."""
    config = TokenizeConfig(backbone="mini-untrained", tau=0.1)
    on_gpu, on_cpu = config.load("cuda"), config.load("cpu")
    asked = too_large(on_gpu, most, monkeypatch)
    with exact_float32():
        alone, together = encode_alone_and_together(on_gpu, on_cpu, {}, 5)
    for a, b in zip(alone, together, strict=True):
        same_decisions(a, b)
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


def test_states_join_and_split() -> None:
    states = [[torch.full((2, 3), float(i)), [torch.full((1,), float(i))]] for i in range(3)]
    for before, after in zip(states, split(joined(states), 3), strict=True):
        assert torch.equal(before[0], after[0]) and torch.equal(before[1][0], after[1][0])


def test_a_batch_of_files_is_the_same_every_time(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["mini", "cosmos"])
def test_states_of_networks_can_be_laid_side_by_side(name: str) -> None:
    """What `joined` and `split` take for granted: videos are the outermost axis of every tensor of a state."""
    from tests.units.test_cosmos import tiny

    network = tiny() if name == "cosmos" else load_backbone("mini-untrained")
    x = torch.rand(3, 3, 13, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.inference_mode():
        alone = []
        for own in x.split(1):
            _, state = network.encode_next(own[:, :, :5], None)
            alone.append((network.encode_next(own[:, :, 5:], state)[0], state))
        state = joined([own for _, own in alone])
        z, _ = network.encode_next(x[:, :, 5:], state)
        again = split(network.encode_next(x[:, :, :5], None)[1], 3)
        later = torch.cat([network.encode_next(x[i : i + 1, :, 5:], again[i])[0] for i in range(3)])
    wanted = torch.cat([latent for latent, _ in alone])
    torch.testing.assert_close(z, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(later, wanted, atol=1e-4, rtol=1e-4)
