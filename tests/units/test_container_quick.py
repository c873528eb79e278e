# SPDX-License-Identifier: Apache-2.0
"""Precision q8-quick: the very numbers of q8, in lanes that zlib reads; a plain decoder by the letter as the oracle."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from inlay import container
from inlay.container import as_stored, to_bytes
from inlay.container.quick import _deflate, _inflate, pack_quick, unpack_quick
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError
from inlay.kernels.rule import why_not
from tests.units.test_container import make_tokens, same


def quick(tokens: Tokens, steps: tuple[float, ...] | None = None) -> Tokens:
    return replace(tokens, recipe=replace(tokens.recipe, precision="q8-quick", steps=steps))


def plain_decoder(data: bytes, tokens: int, channels: int, slot: int) -> list[list[float]]:
    """FORMAT.md, section 8, number by number."""
    block, _, lane_count, patch_count = struct.unpack_from("<HBBI", data)
    at = 8
    steps = [
        struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in struct.unpack_from(f"<{channels}H", data, at)
    ]
    at += 2 * channels
    flags = data[at : at + channels]
    at += channels
    sizes = struct.unpack_from(f"<{1 + lane_count}I", data, at)
    at += 4 + 4 * lane_count
    places = struct.unpack_from(f"<{patch_count}I", data, at)
    patches = struct.unpack_from(f"<{patch_count}i", data, at + 4 * patch_count)
    at += 8 * patch_count
    streams = []
    for size in sizes:
        streams.append(list(zlib.decompress(data[at : at + size], -15)) if size else [])
        at += size
    assert at == len(data)
    classes, *lanes = streams
    order = sorted(range(tokens), key=lambda token: classes[token // block])  # stable
    found = [[0.0] * channels for _ in range(tokens)]
    used = [0] * lane_count
    numbers = {}
    for channel in range(channels):
        total = 0
        for token in order:
            lane = flags[channel] % 64 + classes[token // block]
            byte = lanes[lane][used[lane]]
            used[lane] += 1
            total = (total + byte) % 256 if flags[channel] >= 128 else byte
            numbers[token] = total
        for token in range(tokens):
            if flags[channel] & 64 and token >= slot:
                numbers[token] = (numbers[token] + numbers[token - slot]) % 256
            found[token][channel] = float(np.float32((numbers[token] + 128) % 256 - 128) * np.float32(steps[channel]))
    for place, number in zip(places, patches, strict=True):
        found[place // channels][place % channels] = float(np.float32(number) * np.float32(steps[place % channels]))
    return found


@pytest.mark.parametrize(
    ("seed", "channels", "outliers", "keep"),
    [(0, 1, False, 0.4), (1, 3, True, 0.4), (2, 16, False, 0.6), (3, 3, False, 1.0), (4, 5, True, 1.0)],
)
def test_a_section_decodes_by_the_letter(seed: int, channels: int, outliers: bool, keep: float) -> None:
    tokens = make_tokens(4, 5, 7, channels=channels, seed=seed, keep=keep)
    tokens.values[:, 0] = tokens.values[:, 0].cumsum(0) / 3  # one that is worth differences from the token before
    if keep == 1:  # and one of the slot before
        tokens.values[:, 1] = tokens.values[:35, 1].repeat(4) + tokens.values[:, 1] / 9
        tokens.values[:, 2] = tokens.values[:35, 0].repeat(4) + tokens.values[:, 2] / 9
    if outliers:
        tokens.values[7] += 900
        tokens.values[-1, 0] = -4000
    mask = tokens.mask.numpy()
    data = pack_quick(tokens.values, mask, torch.full((channels,), 0.0625))
    assert (struct.unpack_from("<I", data, 4)[0] > 0) == outliers
    found = torch.tensor(plain_decoder(data, len(tokens), channels, 35))
    if keep == 1:
        assert data[8 + 2 * channels + 1] & 64 and data[8 + 2 * channels] >= 128
    assert torch.equal(found, unpack_quick(data, mask, channels))
    assert torch.equal(found, torch.round(tokens.values.double() / 0.0625).float() * 0.0625)


@pytest.mark.parametrize("keep", [0.03, 0.4, 1.0])
@pytest.mark.parametrize("steps", [None, (0.3,) * 16])
def test_it_holds_the_numbers_of_q8(keep: float, steps: tuple[float, ...] | None) -> None:
    tokens = make_tokens(keep=keep, chunks=3, times=True)
    stored = replace(tokens, recipe=replace(tokens.recipe, steps=steps))
    data = to_bytes(quick(tokens, steps))
    found = container.open(data)
    assert same(found, as_stored(quick(tokens, steps)))
    assert torch.equal(found.values, container.open(to_bytes(stored)).values)
    assert container.summary(data).version == "1.1" and container.verify(data) == []
    assert to_bytes(found) == data if steps is not None else True


def test_channels_that_drift_are_differenced() -> None:
    still = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    walk = still.cumsum(0) / 8
    mask = np.ones((1, 40, 50), dtype=bool)
    steps = torch.full((2,), 0.125)
    data = pack_quick(torch.cat([still, walk], dim=1)[:, [0, 2]], mask, steps)
    assert [flag >= 128 for flag in data[12:14]] == [False, True]
    assert torch.equal(unpack_quick(data, mask, 2)[:, 1], torch.round(walk[:, 0] / 0.125) * 0.125)


class TestDamage:
    @pytest.fixture
    def section(self) -> tuple[bytes, np.ndarray, int]:
        tokens = make_tokens(4, 5, 7)
        mask = tokens.mask.numpy()
        return pack_quick(tokens.values, mask, torch.full((16,), 0.0625)), mask, 16

    @pytest.mark.parametrize(
        ("at", "form", "value", "says"),
        [
            (0, "<H", 0, "make no chunk"),
            (2, "<B", 0, "make no chunk"),
            (2, "<B", 200, "make no chunk"),
            (3, "<B", 255, "make no chunk"),
            (3, "<B", 8, "asks for lane"),
            (4, "<I", 2**31, "ends early"),
            (8, "<H", 0, "step"),
            (40, "<B", 63, "asks for lane"),
            (40, "<B", 64, "not all cells are kept"),
            (56, "<I", 2**31, "ends early"),
            (56, "<I", 0, "exactly|empty lane|damaged"),
        ],
    )
    def test_a_wrong_head_is_refused(
        self, section: tuple[bytes, np.ndarray, int], at: int, form: str, value: int, says: str
    ) -> None:
        data, mask, channels = section
        wrong = bytearray(data)
        struct.pack_into(form, wrong, at, value)
        with pytest.raises(TokenFileError, match=says):
            unpack_quick(bytes(wrong), mask, channels)

    def test_too_much_and_too_little_are_refused(self, section: tuple[bytes, np.ndarray, int]) -> None:
        data, mask, channels = section
        for wrong in (data[:-1], data + b"\0", data[:20], b""):
            with pytest.raises(TokenFileError):
                unpack_quick(wrong, mask, channels)
        with pytest.raises(TokenFileError, match="nothing refers to"):
            unpack_quick(data, np.zeros_like(mask), channels)

    def test_a_lane_that_would_fill_the_memory_is_stopped(self) -> None:
        """A megabyte of zeros that stands for a gigabyte: no more than the chunk's own bytes is ever held."""
        mask = np.ones((1, 1, 8), dtype=bool)
        data = bytearray(pack_quick(torch.zeros(8, 1), mask, torch.ones(1)))
        bomb = zlib.compress(bytes(1 << 20), 9)[2:-4]
        sizes = list(struct.unpack_from("<9I", data, 11))
        at = 11 + 36 + sizes[0]
        filled = next(i for i, size in enumerate(sizes[1:]) if size)
        sizes[1 + filled] = len(bomb)
        wrong = bytes(data[:11]) + struct.pack("<9I", *sizes) + bytes(data[47:at]) + bomb
        with pytest.raises(TokenFileError, match="exactly 8 bytes"):
            unpack_quick(wrong, mask, 1)

    def test_patches_are_bounded(self) -> None:
        mask = np.ones((1, 1, 8), dtype=bool)
        values = torch.zeros(8, 1)
        values[3] = 500
        data = pack_quick(values, mask, torch.ones(1))
        assert struct.unpack_from("<I", data, 4)[0] == 1
        lanes = data[3]
        at = 8 + 2 + 1 + 4 + 4 * lanes
        assert struct.unpack_from("<Ii", data, at) == (3, 500)
        for form, value in ((0, 8), (4, 1 << 23), (4, -(1 << 31))):
            wrong = bytearray(data)
            struct.pack_into("<i" if form else "<I", wrong, at + form, value)
            with pytest.raises(TokenFileError, match="a patch is outside"):
                unpack_quick(bytes(wrong), mask, 1)


@pytest.mark.skipif(bool(why_not("inflate")), reason="isal is not installed")
def test_isal_reads_what_zlib_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound lanes alike to the byte; damaged ones are refused by both, or hold what was asked for and no more."""
    dice, refused = np.random.default_rng(7), 0
    for _ in range(400):
        size = int(dice.integers(1, 3000))
        numbers = np.rint(dice.laplace(0, dice.choice([0.1, 1, 20]), size)).clip(-128, 127).astype(np.int8)
        whole = _deflate(numbers.tobytes())
        damaged = bytearray(whole)
        damaged[dice.integers(len(whole))] ^= 1 << int(dice.integers(8))
        for data in (whole, whole[:-1], whole + b"\0", bytes(damaged)):
            found = []
            for level in ("0", "1"):
                monkeypatch.setenv("INLAY_FAST", level)
                try:
                    found.append(_inflate(data, size))
                except TokenFileError:
                    found.append(b"refused")
            if data is whole:
                assert found == [numbers.tobytes()] * 2
            elif found[0] == b"refused":
                refused += 1
                assert found[1] == b"refused" or len(found[1]) == size
            else:
                assert found[0] == found[1]
    assert refused > 900
