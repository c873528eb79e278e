# SPDX-License-Identifier: Apache-2.0
"""Processes beside a GPU worker: what they decode and pack is what the worker itself would have, and none is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.codec import Parts
from inlay.container import TokenWriter, to_bytes
from inlay.container import open as open_tokens
from inlay.container.tokens import Tokens
from inlay.errors import VideoError
from inlay.scale import TokenizeConfig
from inlay.scale.feed import PIECE_BYTES, Ended, Feed, Opened, decode_item
from inlay.scale.gpu_helpers import HelperDied, Helpers
from inlay.scale.plan import Shard
from inlay.scale.sources import SourceItem
from inlay.scale.worker import Task, Worker
from inlay.tokenizer import Tokenizer
from inlay.video import write_video
from inlay.video.frames import Video
from tests.conftest import moving_square

TINY = {"backbone": "mini-untrained", "tau": 0.3, "chunk_frames": 9}


@pytest.fixture(scope="module")
def helpers() -> Iterator[Helpers]:
    made = Helpers(videos=2, packers=2, pins=False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for n, (frames, side) in enumerate([(40, 48), (9, 48), (21, 64), (33, 48), (5, 48)]):
        write_video(moving_square(frames, side, side, seed=n), folder / f"clip{n}.mp4")
    (folder / "clip5.mp4").write_bytes(b"no video")
    return folder


def item_of(path: Path) -> SourceItem:
    return SourceItem(name=path.name, address=str(path))


def decoded(found: list[object]) -> torch.Tensor:
    return torch.cat([piece.frames for piece in found if isinstance(piece, Video)])


def test_decoded_as_here(helpers: Helpers, folder: Path) -> None:
    config = TokenizeConfig(**TINY)
    for path in sorted(folder.glob("clip[0-4].mp4")):
        here, there = (list(decode(item_of(path), config)) for decode in (decode_item, helpers.decode))
        assert isinstance(there[0], Opened) and there[0] == here[0]
        assert isinstance(there[-1], Ended) and there[-1] == here[-1]
        assert decoded(there).equal(decoded(here))


def test_an_error_of_reading_comes_over(helpers: Helpers, folder: Path) -> None:
    for name in ("clip5.mp4", "missing.mp4"):
        with pytest.raises(VideoError) as here:
            list(decode_item(item_of(folder / name), TokenizeConfig(**TINY)))
        with pytest.raises(VideoError) as there:
            list(helpers.decode(item_of(folder / name), TokenizeConfig(**TINY)))
        assert str(there.value) == str(here.value)


@pytest.mark.parametrize("taken", [0, 1, 2, 4])
def test_stopped_early_it_can_be_used_again(helpers: Helpers, folder: Path, taken: int) -> None:
    config = TokenizeConfig(**TINY)
    for _ in range(3):  # more often than there are decoders
        with closing(helpers.decode(item_of(folder / "clip0.mp4"), config)) as found:
            for _ in range(taken):
                next(found)
    assert len(decoded(list(helpers.decode(item_of(folder / "clip0.mp4"), config)))) == 40


def test_a_frame_larger_than_the_shared_memory(helpers: Helpers, tmp_path: Path) -> None:
    side = 2400
    assert side * side * 3 > PIECE_BYTES
    write_video(Video(frames=torch.full((2, side, side, 3), 90, dtype=torch.uint8)), tmp_path / "large.mp4")
    config = TokenizeConfig(**TINY)
    here, there = (list(decode(item_of(tmp_path / "large.mp4"), config)) for decode in (decode_item, helpers.decode))
    assert len(there) == 4 and decoded(there).equal(decoded(here))


@pytest.mark.parametrize("precision", ["q8", "q8-quick", "fp16"])
def test_packed_as_here(helpers: Helpers, tiny_tokenizer: Tokenizer, tmp_path: Path, precision: str) -> None:
    video = moving_square(50, 48, 64)
    times = torch.arange(50, dtype=torch.float64) / 7
    for given in (video, replace(video, seconds=times)):
        tokens = tiny_tokenizer.encode(given, tau=0.3, precision=precision, chunk_frames=9)
        path = tmp_path / f"{given.seconds is None}.inlay"
        with TokenWriter(path, info=tokens.info, recipe=tokens.recipe, pack=helpers.pack) as writer:
            writer.append(tokens)
        assert path.read_bytes() == to_bytes(tokens)


def test_a_writer_that_is_stopped_keeps_whole_chunks(
    helpers: Helpers, tiny_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tokens = tiny_tokenizer.encode(moving_square(50, 48, 64), tau=0.3, chunk_frames=9)
    path, chunks = tmp_path / "clip.inlay", list(tokens.chunks())
    with (
        pytest.raises(KeyboardInterrupt),
        TokenWriter(path, info=tokens.info, recipe=tokens.recipe, pack=helpers.pack, keep_part=True) as writer,
    ):
        for part in chunks[:3]:
            writer.append(part)
        while not writer.ready:
            time.sleep(0.01)
        writer.append(chunks[3])
        raise KeyboardInterrupt
    kept = open_tokens(f"{path}.part")
    assert len(kept.spans) in (3, 4)
    assert to_bytes(kept) == to_bytes(Tokens.join(chunks[: len(kept.spans)]))


@pytest.mark.parametrize("budget", [{"tau": 0.3}, {"tau": None, "keep": 0.4}], ids=["tau", "keep"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_shard_is_the_same_with_helpers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float | None], ahead: int
) -> None:
    monkeypatch.setattr(Parts, "ahead", property(lambda parts: ahead))
    items = tuple(item_of(path) for path in sorted(folder.iterdir()))
    shard = Shard(number=0, first=0, items=items)
    made = {}
    for name, count in (("alone", 0), ("helped", 2)):
        config = TokenizeConfig(**TINY | budget)
        out = tmp_path / name
        (out / "job").mkdir(parents=True)
        worker = Worker(Task(out=str(out), config=config, device="cpu", threads=1, batch=2, run="run", helpers=count))
        try:
            record = worker.run(shard)
        finally:
            worker.close()
        assert record.shard is not None and items[5].path in [row["path"] for row in record.refused]
        made[name] = record, (out / record.shard).read_bytes()
    assert made["helped"] == made["alone"]


def test_a_decoder_that_dies_ends_the_worker(folder: Path) -> None:
    helpers = Helpers(videos=1, packers=1, pins=False)
    try:
        feed = Feed(item_of(folder / "clip0.mp4"), TokenizeConfig(**TINY), helpers.decode)
        assert feed.size() == (48, 48)
        os.kill(helpers.pids[0], signal.SIGKILL)
        with pytest.raises(HelperDied):
            list(feed)
        feed.stop()
    finally:
        helpers.close()
