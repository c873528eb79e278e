# SPDX-License-Identifier: Apache-2.0
"""Forged token files with right checksums: a small file is little work, and what `verify` passes decodes as it says."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import inlay
from inlay import codec, container
from inlay.cli.main import main
from inlay.codec import Decoder
from inlay.container import TokenReader, to_bytes
from inlay.container.limits import FREE_WORK, WORK_PER_BYTE
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError, UsageError
from inlay.tokenizer import Tokenizer
from inlay.types import Recipe, Span, VideoInfo
from inlay.video import read_video, write_video
from tests.conftest import moving_square
from tests.hunt.forge import Chunk, Parts
from tests.hunt.targets import SEEDS

MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]
FULL, NONE = struct.pack("<H", 1), struct.pack("<H", 0)
MOST_MB, MOST_SECONDS = 300, 2.0

MEASURE = """
import resource, sys, time
from inlay import container
from inlay.errors import TokenFileError
from tests.hunt.targets import FILES
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
container.open(FILES[0][0])
before, start = peak(), time.process_time()
try:
    container.open(sys.argv[1])
    ended = "opened"
except TokenFileError as error:
    ended = str(error)
print(peak() - before, time.process_time() - start, ended)
"""


def promise(
    rows: int, columns: int, slots: int, tokens: int, channels: int, mask: bytes, values: bytes, *, chunks: int = 1
) -> bytes:
    """A file of key chunks that all promise the same."""
    parts = Parts.of(to_bytes(SEEDS[0]))
    size = {"grid": [rows, columns], "height": 8 * rows, "width": 8 * columns, "channels": channels}
    parts.header |= size
    numbers = [1, slots, 1 + (slots - 1) * 4, tokens, len(mask), len(values)]
    parts.chunks = [Chunk(numbers=[i, *numbers], body=mask + values) for i in range(chunks)]
    return parts.pack()


def section(channels: int, words: int) -> bytes:
    """A q8 section of zeros: all numbers are sure, and cost next to nothing."""
    steps = b"\x80\x3f" * channels
    return struct.pack("<II", 1, 0) + steps + bytes(2 * channels + 15 + 2 * channels + 13) + bytes(4 * words)


BOMBS = {
    "66 KB of sure numbers": lambda: promise(4096, 1024, 1, 1 << 22, 16, FULL, section(16, 16_500)),
    "4.6 KB of sure numbers": lambda: promise(512, 512, 1, 1 << 18, 16, FULL, section(16, 1100)),
    "500 bytes of cells": lambda: promise(128, 128, 1024, 1, 16, NONE + bytes(8), section(16, 2)),
    "empty chunks": lambda: promise(1024, 1024, 16, 0, 16, NONE, b"", chunks=60),
    "waves without cells": lambda: promise(1, 1, 1024, 1, 16, NONE + bytes(8), section(16, 2), chunks=20),
    "one channel": lambda: promise(4000, 4000, 1, 16_000_000, 1, FULL, section(1, 1000)),
    "one huge picture": lambda: promise(1800, 1800, 1, 1, 16, NONE + bytes(8), section(16, 100)),
    "many channels": lambda: promise(256, 256, 1, 1 << 16, 4096, FULL, section(4096, 6000)),
    # within the limit: all the work that so small a file may ask for
    "numbers that may be": lambda: promise(280, 280, 1, 78_400, 16, FULL, section(16, 400)),
    "cells that may be": lambda: promise(512, 512, 1, 1, 16, NONE + bytes(8), section(16, 100)),
    "empty chunks that may be": lambda: promise(512, 512, 1, 0, 16, NONE, b"", chunks=70),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_is_little_work(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.inlay"
    path.write_bytes(BOMBS[name]())
    done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    megabytes, seconds, ended = done.stdout.split(maxsplit=2)
    assert float(megabytes) < MOST_MB and float(seconds) < MOST_SECONDS, done.stdout
    assert name.endswith("that may be") == ("allow" not in ended), ended


def test_the_work_is_counted_before_anything_is_read_and_a_word_allows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flat.inlay"
    path.write_bytes(promise(340, 340, 1, 115_600, 16, FULL, section(16, 300)))  # a picture of one colour
    most = FREE_WORK + WORK_PER_BYTE * path.stat().st_size
    with pytest.raises(TokenFileError, match=f"may ask for {most:,}; .* allow it") as caught:
        inlay.open(path)
    assert caught.value.about == ("large",)
    assert len(inlay.open(path, large=True)) == 115_600
    assert container.summary(path).tokens == 115_600  # which decodes nothing
    assert main(["verify", str(path)]) == 4
    assert main(["verify", str(path), "--large"]) == 0
    assert main(["decode", str(path), str(tmp_path / "x.mp4")]) == 4
    assert "(--large takes it)" in capsys.readouterr().err
    assert main(["info", str(path)]) == 0


# --- honest files are not refused -------------------------------------------------------------------------------------


def still_file(rows: int, columns: int, minutes: int) -> bytes:
    """A picture that stands still: one key chunk, then nothing but empty ones."""
    draw = torch.Generator().manual_seed(0)
    spans = (Span(slots=9, frames=33), Span(slots=8, frames=32, key=False))
    mask = torch.zeros(17, rows, columns, dtype=torch.bool)
    mask[0] = True
    made = Tokens(
        values=torch.randn(rows * columns, 16, generator=draw),
        mask=mask,
        info=VideoInfo(width=8 * columns, height=8 * rows, fps=Fraction(30), frames=65),
        recipe=Recipe(backbone="mini", weight_hash="ab", tau=0.5, streaming="stateful"),
        spans=spans,
    )
    parts = Parts.of(to_bytes(made))
    first, empty = parts.chunks
    count = minutes * 60 * 30 // 32
    parts.chunks = [first] + [Chunk(numbers=[i, *empty.numbers[1:]], body=empty.body) for i in range(1, count)]
    return parts.pack()


@pytest.mark.parametrize(
    ("rows", "columns", "minutes"), [(32, 32, 120), (90, 160, 120), (135, 240, 60), (270, 480, 10)]
)
def test_a_long_still_video_is_read(rows: int, columns: int, minutes: int) -> None:
    with TokenReader(still_file(rows, columns, minutes)) as reader:
        assert reader.inconsistencies() == [] and reader.info.frames > 30 * 60 * (minutes - 1)
        assert len(reader.read(-1)) == 0 and len(reader.read(0)) == rows * columns


def test_a_video_in_which_nothing_moves_goes_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    still = moving_square(1, 64, 64).frames.expand(600, -1, -1, -1)
    write_video(inlay.Video(frames=still), tmp_path / "still.mp4")
    words = ["--key-every", "0", "--chunk", "129", "--quiet", "--tau", "1"]
    assert main(["encode", str(tmp_path / "still.mp4"), *words, *MODEL]) == 0
    assert main(["verify", str(tmp_path / "still.inlay")]) == 0
    assert main(["decode", str(tmp_path / "still.inlay"), "--quiet", "--device", "cpu"]) == 0, capsys.readouterr().err
    assert len(read_video(tmp_path / "still.decoded.mp4")) == 600


# --- verify means consistent ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file of two chunks, the second going on from the first, with times."""
    folder = tmp_path_factory.mktemp("made")
    clip = moving_square(41, 24, 32)
    times = torch.arange(41).double() / 24
    times[20:] += 0.5
    write_video(replace(clip, seconds=times), folder / "clip.mp4")
    words = ["--tau", "0.05", "--no-cuts", "--mode", "stateful", "--chunk", "33", "--quiet"]
    assert main(["encode", str(folder / "clip.mp4"), *words, *MODEL]) == 0
    return folder


def header(**change: object) -> Callable[[Parts], None]:
    return lambda parts: parts.header.update(change)


def number(chunk: int, place: int, value: int) -> Callable[[Parts], None]:
    def forge(parts: Parts) -> None:
        parts.chunks[chunk].numbers[place] = value

    return forge


def times(chunk: int, change: Callable[[list[float]], None]) -> Callable[[Parts], None]:
    def forge(parts: Parts) -> None:
        target = parts.chunks[chunk]
        found = list(struct.unpack_from(f"<{target.numbers[3]}d", target.body))
        change(found)
        target.body = struct.pack(f"<{len(found)}d", *found) + target.body[8 * len(found) :]

    return forge


FLAGS, SLOTS, FRAMES = 1, 2, 3
FORGERIES: dict[str, tuple[Callable[[Parts], None], str]] = {
    "rows": (header(grid=[4, 4]), "4 rows for 24 pixels, which make 3"),
    "height": (header(height=33), "3 rows for 33 pixels, which make 5"),
    "columns": (header(grid=[3, 3]), "3 columns for 32 pixels"),
    "pixels a cell": (header(space_stride=4, grid=[6, 8]), "mini-untrained has 8 pixels a cell"),
    "frames a slot": (header(time_stride=8), "slots"),
    "channels": (header(channels=8), "mini-untrained has 16 channels"),
    "no state": (header(backbone="hunyuan-video"), "hunyuan-video cannot carry state between chunks"),
    "first chunk": (number(0, FLAGS, 2), "chunk 1 goes on from a chunk before it"),
    "more frames": (number(1, FRAMES, 9), "9 frames in 2 slots"),
    "fewer frames": (number(0, FRAMES, 29), "29 frames"),
    "one frame more": (number(0, FRAMES, 34), "34 frames make 10"),
    "clips": (header(streaming="clips"), "in a file of clips"),
    "mode": (header(streaming="psychic"), "'streaming' should be one of"),
    "still": (header(frame_rate="1/4000"), "'frame_rate' should be from"),
    "fast": (header(frame_rate="20000/1"), "'frame_rate' should be from"),
    "times back": (times(0, lambda t: t.reverse()), "times run backwards"),
    "times back between chunks": (times(1, lambda t: t.__setitem__(0, 0.1)), "times run backwards"),
    "times below zero": (times(0, lambda t: t.__setitem__(0, -1.0)), "from 0 to"),
    "times without end": (times(1, lambda t: t.__setitem__(-1, 2e9)), "from 0 to"),
    "a gap": (times(1, lambda t: t.__setitem__(-1, 30_000.0)), "s apart"),
    "no time": (times(0, lambda t: t.__setitem__(3, math.nan)), "not a finite number"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_verify_refuses_what_would_not_decode_to_what_it_says(
    name: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge, words = FORGERIES[name]
    parts = Parts.of((made / "clip.inlay").read_bytes())
    forge(parts)
    path = tmp_path / "forged.inlay"
    path.write_bytes(parts.pack())
    problems = codec.verify(path)
    assert any(words in problem for problem in problems), problems
    assert main(["verify", str(path)]) == 4
    out = tmp_path / "out.mp4"
    assert main(["decode", str(path), str(out), "--fill", "hold", "--device", "cpu"]) == 4, capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [path]


def test_what_verify_passes_decodes_to_what_the_header_says(made: Path, tmp_path: Path) -> None:
    path = made / "clip.inlay"
    assert codec.verify(path) == [] and main(["verify", str(path)]) == 0
    assert main(["decode", str(path), str(tmp_path / "x.mp4"), "--quiet", "--device", "cpu"]) == 0
    found, said = read_video(tmp_path / "x.mp4"), container.summary(path)
    assert (len(found), found.width, found.height) == (said.frames, said.width, said.height) == (41, 32, 24)


@pytest.mark.parametrize("rate", ["1/3600", "10000/1", "999999/100"])
def test_the_slowest_and_the_fastest_rates_decode(rate: str, made: Path, tmp_path: Path) -> None:
    write_video(moving_square(3, 24, 32), tmp_path / "a.mp4")
    assert main(["encode", str(tmp_path / "a.mp4"), "--tau", "1", "--quiet", *MODEL]) == 0
    parts = Parts.of((tmp_path / "a.inlay").read_bytes())
    parts.header["frame_rate"] = rate
    (tmp_path / "b.inlay").write_bytes(parts.pack())
    assert codec.verify(tmp_path / "b.inlay") == []
    assert main(["decode", str(tmp_path / "b.inlay"), str(tmp_path / "b.mp4"), "--quiet", "--device", "cpu"]) == 0
    assert len(read_video(tmp_path / "b.mp4")) == 3


def test_the_decoder_refuses_tokens_of_other_strides(tiny_tokenizer: Tokenizer) -> None:
    tokens = tiny_tokenizer.encode(moving_square(9, 24, 32), tau=1.0)
    with pytest.raises(TokenFileError, match="8 pixels a cell"):
        Decoder(tiny_tokenizer).push(replace(tokens, recipe=replace(tokens.recipe, space_stride=4)))
    short = replace(tokens, info=replace(tokens.info, frames=12), spans=(replace(tokens.spans[0], frames=12),))
    with pytest.raises(TokenFileError, match="makes 9 frames, and it promises 12"):
        Decoder(tiny_tokenizer).push(short)


def test_what_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    tokens = SEEDS[1]
    assert tokens.seconds is not None
    for seconds, words in ((tokens.seconds.flip(0), "backwards"), (tokens.seconds * 1e6, "apart")):
        with pytest.raises(UsageError, match=words):
            replace(tokens, seconds=seconds).save(tmp_path / "x.inlay")
    with pytest.raises(UsageError, match="frame_rate"):
        replace(tokens, info=replace(tokens.info, fps=Fraction(1, 4000))).save(tmp_path / "x.inlay")
    assert list(tmp_path.iterdir()) == []


# --- tau without end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", ["1e20", "inf", "nan", "-1", "1e300"])
def test_a_tau_beyond_all_distances_is_refused(tau: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["encode", str(made / "clip.mp4"), str(made / "y.inlay"), "--tau", tau, *MODEL]) == 2
    assert "tau is a distance, from 0 to 1e+06" in capsys.readouterr().err


@pytest.mark.parametrize("tau", ["infinite", 1e20, 1e300])
@pytest.mark.parametrize("fill", ["lit", "lit-paper", "hold"])
def test_a_file_of_infinite_tau_decodes(tau: object, fill: str, tmp_path: Path) -> None:
    write_video(moving_square(9, 32, 32), tmp_path / "a.mp4")
    assert main(["encode", str(tmp_path / "a.mp4"), "--tau", "1000", "--device", "cpu", "--quiet"]) == 0
    parts = Parts.of((tmp_path / "a.inlay").read_bytes())
    parts.header["tau"] = tau
    (tmp_path / "b.inlay").write_bytes(parts.pack())
    words = ["--fill", fill, "--device", "cpu", "--quiet", "--lossless", "--force"]
    for name in ("a", "b"):
        assert main(["decode", str(tmp_path / f"{name}.inlay"), str(tmp_path / f"{name}.mkv"), *words]) == 0
    a, b = (read_video(tmp_path / f"{name}.mkv").frames.float() for name in "ab")
    assert len(b) == 9 and float((a - b).abs().mean()) < 40  # a picture, and not noise


# --- what is intact, between two times --------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [False, True])
def test_keep_going_holds_between_two_times(timed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = moving_square(99, 24, 32)
    seconds = torch.arange(99).double() / 24
    if timed:
        seconds[50:] += 0.25
        clip = replace(clip, seconds=seconds)
    write_video(clip, tmp_path / "a.mp4")
    words = ["--mode", "clips", "--tau", "0.5", "--quiet", "--precision", "fp32"]
    assert main(["encode", str(tmp_path / "a.mp4"), *words, *MODEL]) == 0
    data = bytearray((tmp_path / "a.inlay").read_bytes())
    with TokenReader(bytes(data)) as reader:
        assert len(reader) == 3 and reader.timed == timed
        entry = reader._contents.entries[1]
    data[entry.offset + entry.length - 10] ^= 1
    (tmp_path / "b.inlay").write_bytes(data)
    cut = ["--from", "1", "--to", "4", "--device", "cpu", "--lossless", "--force", "--json"]
    out = tmp_path / "b.mkv"
    capsys.readouterr()
    assert main(["decode", str(tmp_path / "b.inlay"), str(out), *cut]) == 4
    assert main(["decode", str(tmp_path / "b.inlay"), str(out), *cut, "--keep-going"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == ["chunk 2 of 3: fails its checksum"]
    assert main(["decode", str(tmp_path / "a.inlay"), str(tmp_path / "a.mkv"), *cut]) == 0
    whole, rest = read_video(tmp_path / "a.mkv").frames, read_video(out).frames
    before, after = 33 - 24, len(whole) - 66 + 24  # frames of the first and of the third chunk
    assert len(rest) == before + after == report["frames"]
    assert torch.equal(rest, torch.cat([whole[:before], whole[len(whole) - after :]]))
    lost = ["--from", "1.5", "--to", "2", "--device", "cpu", "--keep-going"]
    capsys.readouterr()
    assert main(["decode", str(tmp_path / "b.inlay"), str(tmp_path / "c.mkv"), *lost]) == 4
    err = capsys.readouterr().err
    assert "b.inlay: nothing of this stretch is intact: chunk 2 of 3: fails its checksum; intact are 0.00 to 1.3" in err
    assert f", {3.0 if timed else 2.75:.2f} to " in err and "(--from, --to)" in err and err.count("\n") == 1
    assert not (tmp_path / "c.mkv").exists()


def test_chunks_that_build_upon_a_lost_one_are_told_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_video(moving_square(99, 24, 32), tmp_path / "a.mp4")
    assert main(["encode", str(tmp_path / "a.mp4"), "--tau", "0.5", "--quiet", *MODEL]) == 0
    data = bytearray((tmp_path / "a.inlay").read_bytes())
    with TokenReader(bytes(data)) as reader:
        assert [span.key for span in reader.spans] == [True, False, False, False]
        entry = reader._contents.entries[1]
    data[entry.offset + entry.length - 10] ^= 1
    (tmp_path / "b.inlay").write_bytes(data)
    capsys.readouterr()
    words = ["decode", str(tmp_path / "b.inlay"), str(tmp_path / "c.mp4"), "--device", "cpu", "--keep-going"]
    assert main([*words, "--from", "3"]) == 4
    err = capsys.readouterr().err
    assert "chunk 2 of 4: fails its checksum; chunk 3 of 4: continues a chunk that is lost; " in err
