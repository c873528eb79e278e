# SPDX-License-Identifier: Apache-2.0
"""Videos of one size share the network's calls, and come out as if each had been alone, whoever was first."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inlay.backbones import load_backbone
from inlay.masking import Profile
from inlay.scale.together import Together, joined, split
from inlay.stream import StreamConfig, StreamEncoder
from inlay.tokenizer import Tokenizer
from inlay.types import Tokens, Video
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


def encode(tokenizer: Tokenizer, video: Video, config: StreamConfig, *, slowly: bool = False) -> Tokens:
    encoder = StreamEncoder(tokenizer, config)
    parts = []
    for begin in range(0, len(video), 3):
        if slowly:
            time.sleep(random.random() * 0.003)
        parts += encoder.push(video[begin : begin + 3])
    return Tokens.join(parts + encoder.flush())


@pytest.mark.parametrize("mode", ["stateful", "dual-cache", "clips"])
def test_together_as_alone(tokenizer: Tokenizer, mode: str) -> None:
    config = StreamConfig(mode=mode, chunk_frames=9, cuts=False)
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
    config = StreamConfig(chunk_frames=9)
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


def test_states_join_and_split() -> None:
    states = [[torch.full((2, 3), float(i)), [torch.full((1,), float(i))]] for i in range(3)]
    for before, after in zip(states, split(joined(states), 3), strict=True):
        assert torch.equal(before[0], after[0]) and torch.equal(before[1][0], after[1][0])


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


@pytest.mark.parametrize("name", ["mini", "cosmos"])
def test_states_of_networks_can_be_laid_side_by_side(name: str) -> None:
    """What `joined` and `split` take for granted: videos are the outermost axis of every tensor of a state."""
    from tests.rooms.test_cosmos import tiny

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
