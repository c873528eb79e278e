# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile token files in; an error or the very same tokens out, quickly and in little memory."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from inlay import container
from inlay.container import TokenReader, as_stored, to_bytes
from inlay.container.layout import CHUNK_HEAD_BYTES, CRC_BYTES, PREFIX_BYTES, pack_prefix, seal
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError
from inlay.types import Recipe, Span, VideoInfo

SLOTS, ROWS, COLUMNS, CHANNELS, CHUNKS = 2, 2, 3, 2, 3


def tiny_tokens(precision: str = "q8", *, keys: tuple[bool, ...] = (True,) * CHUNKS, times: bool = False) -> Tokens:
    draw = torch.Generator().manual_seed(0)
    mask = torch.rand(len(keys) * SLOTS, ROWS, COLUMNS, generator=draw) < 0.5
    mask[::SLOTS] = True
    frames = 5 * len(keys)
    return Tokens(
        values=torch.randn(int(mask.sum()), CHANNELS, generator=draw),
        mask=mask,
        info=VideoInfo(width=24, height=15, fps=Fraction(25), frames=frames),
        recipe=Recipe(backbone="mini", weight_hash="ab", tau=0.5, precision=precision),
        spans=tuple(Span(slots=SLOTS, frames=5, key=key) for key in keys),
        seconds=torch.arange(frames).double() / 20 if times else None,
    )


def same(a: Tokens, b: Tokens) -> bool:
    times = a.seconds is b.seconds is None or torch.equal(a.seconds, b.seconds)
    whole = torch.equal(a.values, b.values) and torch.equal(a.mask, b.mask) and times
    return whole and (a.info, a.recipe, a.spans) == (b.info, b.recipe, b.spans)


def is_part(some: Tokens, whole: Tokens) -> bool:
    """Is each chunk of `some` a chunk of `whole`, in order?"""
    rest = iter(whole.chunks())
    return all(any(same(mine, theirs) for theirs in rest) for mine in some.chunks())


class Victim:
    """One sound file, and the two demands on whatever is made of it."""

    def __init__(self, tokens: Tokens) -> None:
        self.data, self.tokens = to_bytes(tokens), as_stored(tokens)

    def check(self, damaged: bytes) -> bool:
        """True where the damage was refused; anything but an error or the same tokens fails the test."""
        try:
            assert same(container.open(damaged), self.tokens)
        except TokenFileError as error:
            assert "\n" not in str(error)
            return True
        return False

    def check_keep_going(self, damaged: bytes) -> None:
        try:
            with TokenReader(damaged, keep_going=True) as reader:
                found = Tokens.join(list(reader))
        except TokenFileError:
            return
        assert is_part(found, self.tokens)
        assert len(found.spans) == CHUNKS or reader.problems


def flip(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flip_some(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data = flip(data, rng.randrange(8 * len(data)))
    return data


def drop_span(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randint(1, 80) :]


def repeat_span(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[: start + rng.randint(1, 80)] + data[start:]


def overwrite_span(data: bytes, rng: random.Random) -> bytes:
    start, size = rng.randrange(len(data)), rng.randint(1, 64)
    filler = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
    return (data[:start] + filler + data[start + size :])[: len(data)]


def append_bytes(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.randint(1, 64))


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    cut,
    flip_some,
    drop_span,
    repeat_span,
    overwrite_span,
    append_bytes,
]


@pytest.fixture(scope="module", params=["q8", "fp16"])
def victim(request: pytest.FixtureRequest) -> Victim:
    return Victim(tiny_tokens(request.param, times=request.param == "fp16"))


def test_every_byte_flipped_is_an_error_or_harmless(victim: Victim) -> None:
    """Harmless are only the bytes of the index and footer, which can be rebuilt."""
    header_bytes = PREFIX_BYTES + struct.unpack_from("<I", victim.data, 12)[0] + CRC_BYTES
    with TokenReader(victim.data) as reader:
        tail = header_bytes + sum(reader.head(i).length for i in range(len(reader)))
    for at in range(len(victim.data)):
        refused = victim.check(flip(victim.data, 8 * at + at % 8))
        assert refused == (at < tail), f"byte {at} of {len(victim.data)}, index from {tail}"


def test_every_cut_is_an_error_or_harmless(victim: Victim) -> None:
    for size in range(len(victim.data)):
        victim.check(victim.data[:size])


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_random_damage(victim: Victim, damage: Callable[[bytes, random.Random], bytes]) -> None:
    rng = random.Random(1)
    for _ in range(120):
        damaged = damage(victim.data, rng)
        refused = victim.check(damaged)
        assert refused or damaged == victim.data or damage is not append_bytes
        victim.check_keep_going(damaged)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_damaged_files(victim: Victim) -> None:
    rng = random.Random(2)
    for _ in range(10_000):
        damaged = rng.choice(DAMAGES)(victim.data, rng)
        victim.check(damaged)
        victim.check_keep_going(damaged)


@pytest.mark.slow
def test_every_bit(victim: Victim) -> None:
    for bit in range(8 * len(victim.data)):
        victim.check(flip(victim.data, bit))


class TestKeepGoing:
    def test_a_cut_file_yields_its_intact_chunks(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        victim = Victim(tiny_tokens())
        with TokenReader(victim.data) as reader:
            size = len(victim.data) - 200
            lengths = [reader.head(i).length for i in range(3)]
        path = tmp_path / "cut.inlay"
        path.write_bytes(victim.data[:size])
        promise = rf"cut.inlay: chunk 3 of 3 .*promises {len(victim.data):,} bytes, the file has {size:,}"
        with pytest.raises(TokenFileError, match=promise) as caught:
            container.open(path)
        assert caught.value.about == ("keep_going",)
        with pytest.raises(TokenFileError, match="chunk 3 of 3"):
            container.summary(path)
        with caplog.at_level(logging.WARNING):
            found = container.open(path, keep_going=True)
        assert [same(a, b) for a, b in zip(found.chunks(), victim.tokens.chunks(), strict=False)] == [True, True]
        assert found.info.frames == 10
        assert "chunk 3 of 3" in caplog.text
        assert container.summary(path, keep_going=True).chunks == 2
        assert len(container.verify(path)) == 1
        assert all(lengths)

    def test_a_damaged_chunk_is_named_and_passed_over(self) -> None:
        victim = Victim(tiny_tokens())
        with TokenReader(victim.data) as reader:
            damaged = flip(victim.data, 8 * (reader._contents.entries[1].offset + CHUNK_HEAD_BYTES + 3))
        with pytest.raises(TokenFileError, match=r"chunk 2 of 3: fails its checksum"):
            container.open(damaged)
        with TokenReader(damaged) as reader:
            assert same(reader.read(2), list(victim.tokens.chunks())[2])
        with TokenReader(damaged, keep_going=True) as reader:
            assert [len(tokens.mask) for tokens in reader] == [2, 2]
            assert reader.problems == ["chunk 2 of 3: fails its checksum"]

    @pytest.mark.parametrize("place", [0, CHUNK_HEAD_BYTES + 2])
    def test_a_chunk_that_continues_a_lost_one_is_lost_too(self, place: int) -> None:
        victim = Victim(tiny_tokens(keys=(True, True, False, True)))
        with TokenReader(victim.data) as reader:
            damaged = flip(victim.data, 8 * (reader._contents.entries[1].offset + place))
        with TokenReader(damaged, keep_going=True) as reader:
            found = list(reader)
        assert len(found) == 2
        assert "chunk 3 of 4: continues a chunk that is lost" in reader.problems

    def test_a_missing_index_is_rebuilt(self) -> None:
        victim = Victim(tiny_tokens())
        with TokenReader(victim.data) as reader:
            end = reader._contents.entries[-1].offset + reader._contents.entries[-1].length
        with TokenReader(victim.data[:end]) as reader:
            assert same(Tokens.join(list(reader)), victim.tokens)
            assert reader.problems == ["the index is missing or damaged; it was rebuilt from the chunks"]
        assert container.verify(victim.data[:end]) == reader.problems

    def test_bytes_after_the_end_are_found(self) -> None:
        victim = Victim(tiny_tokens())
        with pytest.raises(TokenFileError, match="12 bytes follow the end"):
            container.open(victim.data + bytes(12))
        assert same(container.open(victim.data + bytes(12), keep_going=True), victim.tokens)

    def test_a_file_that_was_never_finished(self) -> None:
        victim = Victim(tiny_tokens())
        header = json.loads(header_text(victim.data))
        damaged = with_header(victim.data, {**header, "frames": None, "chunks": None, "file_bytes": None})
        with pytest.raises(TokenFileError, match="never finished"):
            container.open(damaged[:-60])
        assert same(container.open(damaged[:-60], keep_going=True), victim.tokens)


class TestNotATokenFile:
    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"", "empty"),
            (b"\0\0\0\x20ftypisom" + bytes(50), "looks like a video"),
            (b"\x1aE\xdf\xa3" + bytes(50), "looks like a video"),
            (b"\x1f\x8b" + bytes(50), "archive"),
            (b"\x89INL\n\x1a\n" + bytes(50), "text mode"),
            (b"hello, world", "68 65 6c"),
        ],
    )
    def test_it_is_told_what_it_is(self, data: bytes, words: str) -> None:
        with pytest.raises(TokenFileError, match=f"not a token file: .*{words}"):
            container.open(data)

    def test_paths(self, tmp_path: Path) -> None:
        for path, words in ((tmp_path / "no.inlay", "does not exist"), (tmp_path, "is a folder")):
            with pytest.raises(TokenFileError, match=words):
                container.open(path)
        assert len(container.verify(tmp_path / "no.inlay")) == 1


def header_text(data: bytes) -> bytes:
    (length,) = struct.unpack_from("<I", data, 12)
    return data[PREFIX_BYTES : PREFIX_BYTES + length]


def with_header(data: bytes, header: dict[str, object] | bytes) -> bytes:
    """The file with another header under a good checksum, as only a hostile hand would make it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return seal(pack_prefix(len(text)) + text) + data[PREFIX_BYTES + len(header_text(data)) + CRC_BYTES :]


class TestHostile:
    @pytest.mark.parametrize(
        "change",
        [
            {"grid": [65536, 65536]},
            {"grid": [4096, 4096], "width": 32768, "height": 32768},
            {"grid": [2]},
            {"grid": [2, 3.0]},
            {"grid": [True, 3]},
            {"grid": "2x3"},
            {"grid": [500, 3]},
            {"channels": 0},
            {"channels": 10**30},
            {"channels": None},
            {"width": -1},
            {"height": "15"},
            {"frames": 2**60},
            {"chunks": 1.5},
            {"file_bytes": True},
            {"time_stride": 0},
            {"space_stride": 10**9},
            {"frame_rate": 25},
            {"frame_rate": "25"},
            {"frame_rate": "25/0"},
            {"frame_rate": "1/" + "9" * 40},
            {"tau": -1},
            {"tau": "1"},
            {"tau": [0.5]},
            {"tau": 10**400},
            {"precision": "q9"},
            {"precision": ["q8"]},
            {"backbone": None},
            {"backbone": "x" * 1000},
            {"fill": "\x1b[2J"},
            {"weight_hash": "\ud800"},
        ],
        ids=lambda change: json.dumps(change)[:40],
    )
    def test_header_fields(self, change: dict[str, object]) -> None:
        victim = Victim(tiny_tokens())
        damaged = with_header(victim.data, {**json.loads(header_text(victim.data)), **change})
        assert self.refused(damaged)

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"[]",
            b"null",
            b"{",
            b"\xff\xfe",
            b"[" * 60_000,
            b'{"a":' * 10_000,
            b'{"tau":NaN}',
            b'{"tau":1,"tau":1}',
            b'{"tau":' + b"9" * 50_000 + b"}",
            b"{}",
        ],
        ids=lambda text: ascii(text[:12]),
    )
    def test_header_json(self, text: bytes) -> None:
        assert self.refused(with_header(Victim(tiny_tokens()).data, text))

    def test_header_length(self) -> None:
        data = Victim(tiny_tokens()).data
        for length in (0, 1, 2**16 + 1, 2**32 - 1):
            assert self.refused(data[:12] + struct.pack("<I", length) + data[16:])

    @pytest.mark.parametrize("precision", ["q8", "fp16"])
    def test_chunk_heads_with_a_good_checksum(self, precision: str) -> None:
        """Counts of every size in every field; the tokens of other chunks are a byproduct at most."""
        victim = Victim(tiny_tokens(precision))
        with TokenReader(victim.data) as reader:
            entry = reader._contents.entries[1]
        for field, size in ((4, 4), (8, 2), (10, 2), (12, 4), (16, 4), (20, 4), (24, 4)):
            for value in (0, 1, 3, 7, 255, 65535, 2**31, 2**32 - 1):
                chunk = bytearray(victim.data[entry.offset : entry.offset + entry.length])
                number = (value % 2 ** (8 * size)).to_bytes(size, "little")
                if chunk[field : field + size] == number or (field == 8 and value == 0):
                    continue
                chunk[field : field + size] = number
                head = seal(bytes(chunk[: CHUNK_HEAD_BYTES - CRC_BYTES]))
                sealed = seal(head + bytes(chunk[CHUNK_HEAD_BYTES:-CRC_BYTES]))
                damaged = victim.data[: entry.offset] + sealed + victim.data[entry.offset + entry.length :]
                assert self.refused(damaged), (field, value)

    @pytest.mark.parametrize("precision", ["q8", "fp16"])
    def test_chunk_data_with_a_good_checksum_never_crash(self, precision: str) -> None:
        """Nobody can tell such a forgery from a file, so tokens may come back; but nothing else may."""
        victim, rng = Victim(tiny_tokens(precision)), random.Random(3)
        with TokenReader(victim.data) as reader:
            entry = reader._contents.entries[1]
        start, end = entry.offset, entry.offset + entry.length
        for _ in range(150):
            body = bytearray(victim.data[start : end - CRC_BYTES])
            for _ in range(rng.choice((1, 2, 20))):
                body[rng.randrange(CHUNK_HEAD_BYTES, len(body))] = rng.choice((0, 255, rng.randrange(256)))
            with contextlib.suppress(TokenFileError):
                container.open(victim.data[:start] + seal(bytes(body)) + victim.data[end:])

    def test_a_file_full_of_false_markers_is_given_up_soon(self) -> None:
        data = Victim(tiny_tokens()).data
        start = time.perf_counter()
        assert self.refused(data[:-400] + b"chnk" * 500_000)
        assert time.perf_counter() - start < 5

    @staticmethod
    def refused(damaged: bytes) -> bool:
        """Refused, or read, but always in little memory."""
        tracemalloc.start()
        try:
            container.open(damaged)
        except TokenFileError:
            return True
        else:
            return False
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 2_000_000 + 6 * len(damaged)
