# SPDX-License-Identifier: Apache-2.0
"""Tokens to bytes and back, with a plain range decoder as the oracle of the coder."""

from __future__ import annotations

import hashlib
import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inlay
from inlay import container
from inlay.container import TokenReader, TokenWriter, as_stored, choose_steps, dequantise, quantise, save, to_bytes
from inlay.container.coder import TABLES, TOTAL, SymbolDecoder, SymbolEncoder, frequencies, reach
from inlay.container.layout import seal
from inlay.container.mask import pack_mask, unpack_mask
from inlay.container.q8 import pack_q8, unpack_q8
from inlay.container.tokens import Tokens
from inlay.errors import OutputError, ShapeError, TokenFileError, UsageError
from inlay.types import PRECISIONS, Recipe, Span, VideoInfo
from tests.assets.regenerate import GOLDEN, golden_tokens
from tests.hunt.forge import Parts

ASSETS = Path(__file__).parent.parent / "assets"


def make_tokens(
    slots: int = 9,
    rows: int = 8,
    columns: int = 12,
    *,
    keep: float = 0.4,
    precision: str = "q8",
    chunks: int = 1,
    channels: int = 16,
    times: bool = False,
    seed: int = 0,
    tau: float = 0.25,
) -> Tokens:
    """Chunks of smooth noise, the first slot of each kept whole."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(chunks * slots, rows, columns, generator=draw) < keep
    mask[::slots] = True
    z_THWC = torch.randn(chunks * slots, rows, columns, channels, generator=draw).cumsum(0) / 3
    frames = chunks * (4 * slots - 3)
    return Tokens(
        values=(z_THWC * torch.linspace(0.2, 3, channels))[mask],
        mask=mask,
        info=VideoInfo(width=8 * columns - 3, height=8 * rows - 5, fps=Fraction(30000, 1001), frames=frames),
        recipe=Recipe(backbone="mini", weight_hash="0123abcd", tau=tau, precision=precision),
        spans=(Span(slots=slots, frames=4 * slots - 3),) * chunks,
        seconds=torch.arange(frames).double() / 29.97 + 0.001 if times else None,
    )


def same(a: Tokens, b: Tokens) -> bool:
    times = a.seconds is b.seconds is None or torch.equal(a.seconds, b.seconds)
    whole = torch.equal(a.values, b.values) and torch.equal(a.mask, b.mask) and times
    return whole and (a.info, a.recipe, a.spans) == (b.info, b.recipe, b.spans)


class TestRoundTrip:
    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("chunks", [1, 3])
    @pytest.mark.parametrize("times", [False, True])
    def test_a_reader_gets_what_as_stored_says(self, tmp_path: Path, precision: str, chunks: int, times: bool) -> None:
        tokens = make_tokens(precision=precision, chunks=chunks, times=times)
        back = inlay.open(save(tokens, tmp_path / "a.inlay"))
        assert same(back, as_stored(tokens))
        assert back.values.dtype == torch.float32

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_saving_again_changes_nothing(self, precision: str) -> None:
        once = as_stored(make_tokens(precision=precision, chunks=2))
        assert same(as_stored(once), once)
        assert same(container.open(to_bytes(once)), once)

    def test_raw_precisions_round_as_torch_does(self) -> None:
        tokens = make_tokens()
        for precision, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
            stored = as_stored(replace(tokens, recipe=replace(tokens.recipe, precision=precision)))
            assert torch.equal(stored.values, tokens.values.to(dtype).float())

    def test_q8_is_the_public_quantiser(self) -> None:
        tokens = make_tokens()
        steps = choose_steps(tokens.values)
        back = container.open(to_bytes(tokens))
        assert torch.equal(back.values, dequantise(quantise(tokens.values, steps), steps))
        assert bool(((back.values - tokens.values).abs() <= steps / 2 * (1 + 1e-6)).all())

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def test_any_mask_any_values(self, data: st.DataObject) -> None:
        shape = data.draw(st.tuples(*[st.integers(1, 7)] * 3))
        cells = math.prod(shape)
        mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=cells, max_size=cells))).view(shape)
        channels, kept = data.draw(st.integers(1, 5)), int(mask.sum())
        number = st.one_of(st.floats(-3e4, 3e4, width=16), st.sampled_from([0.0, -0.0, 1e-7, 6e4]))
        values = data.draw(st.lists(number, min_size=kept * channels, max_size=kept * channels))
        frames = data.draw(st.integers(max(1, 4 * shape[0] - 6), 4 * shape[0]))  # as many as the slots can stand for
        tokens = Tokens(
            values=torch.tensor(values, dtype=torch.float32).view(kept, channels),
            mask=mask,
            info=VideoInfo(width=8 * shape[2], height=8 * shape[1], fps=Fraction(24), frames=frames),
            recipe=Recipe(backbone="b", weight_hash="", tau=0, precision=data.draw(st.sampled_from(PRECISIONS))),
            spans=(Span(slots=shape[0], frames=frames, key=data.draw(st.booleans())),),
        )
        assert same(container.open(to_bytes(tokens)), as_stored(tokens))

    def test_sources_of_every_kind(self, tmp_path: Path) -> None:
        tokens = make_tokens(times=True)
        path = tokens.save(tmp_path / "a.inlay")
        data = path.read_bytes()
        assert data == to_bytes(tokens)
        with path.open("rb") as file:
            sources = [path, str(path), data, bytearray(data), io.BytesIO(data), file, Pipe(data)]
            assert all(same(container.open(source), as_stored(tokens)) for source in sources)
        with pytest.raises(UsageError, match="got int"):
            container.open(3)

    def test_infinite_tau(self) -> None:
        assert container.open(to_bytes(make_tokens(tau=math.inf))).recipe.tau == math.inf

    def test_one_frame_and_no_tokens_at_all(self) -> None:
        for keep in (0.0, 1.0):
            tokens = make_tokens(1, 1, 1, keep=keep)
            tokens = tokens if keep else replace(tokens, mask=tokens.mask & False, values=tokens.values[:0])
            assert same(container.open(to_bytes(tokens)), as_stored(tokens))


class Pipe(io.RawIOBase):
    """A file that cannot seek, like standard input."""

    def __init__(self, data: bytes) -> None:
        self._rest = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        return self._rest.read(size)


class TestQuantiser:
    def test_steps_are_near_a_sixteenth_of_the_deviation(self) -> None:
        values = torch.randn(5000, 6) * torch.tensor([1e-6, 0.01, 0.7, 1.0, 30.0, 1e6])
        ratio = choose_steps(values) * 16 / values.std(0)
        assert bool(((ratio > 2**-0.26) & (ratio < 2**0.26)).all())

    def test_steps_survive_bfloat16_and_flat_channels(self) -> None:
        values = torch.stack([torch.zeros(9), torch.full((9,), 5.0), torch.randn(9)], dim=1)
        steps = choose_steps(values)
        assert torch.equal(steps, steps.bfloat16().float())
        assert (dequantise(quantise(values, steps), steps)[:, 1] - 5).abs().max() < 1e-5
        assert torch.equal(choose_steps(values[:0]), torch.ones(3))

    def test_given_steps_are_used_and_checked(self) -> None:
        tokens = make_tokens()
        found = container.open(to_bytes(stepped(tokens, (0.5,) * 16)))
        assert torch.equal(found.values, torch.round(tokens.values * 2) / 2)
        wrong: list[tuple[tuple[float, ...], str]] = [
            ((1.0,) * 3, "hex digits"),
            ((0.0,) * 16, "positive"),
            ((math.nan,) * 16, "positive"),
            ((1e31,) * 16, "positive"),
            ((), "positive"),
            ((5e-10,) * 16, "coarser step"),
        ]
        for steps, words in wrong:
            with pytest.raises(UsageError, match=words):
                to_bytes(stepped(tokens, steps))
        with pytest.raises(UsageError, match="16 channels need 16 steps; got 3"):
            as_stored(stepped(tokens, (1.0,) * 3))
        with pytest.raises(UsageError, match="fp16 has none"):
            stepped(make_tokens(precision="fp16"), (1.0,) * 16)

    def test_steps_come_back_as_they_were_stored(self) -> None:
        """In bfloat16, so that what was read is stored again without a change; and beside them their place."""
        tokens = stepped(make_tokens(chunks=3), tuple(0.01 * 1.3**c for c in range(16)), step=2.5)
        assert tokens.recipe.steps == tuple(torch.tensor(tokens.recipe.steps).bfloat16().tolist())
        data = to_bytes(tokens)
        found = container.open(data)
        assert same(found, as_stored(tokens))
        assert to_bytes(found) == data
        assert (found.recipe.step, found.recipe.steps) == (2.5, tokens.recipe.steps)

    def test_a_file_says_the_version_that_it_needs(self) -> None:
        plain, steps = make_tokens(), stepped(make_tokens(), (0.5,) * 16)
        assert container.summary(to_bytes(plain)).version == "1.0"
        assert container.summary(to_bytes(steps)).version == "1.1"
        assert b'"step' not in to_bytes(plain)

    def test_chunks_of_a_stepped_file_need_nothing_from_its_header(self) -> None:
        """So a reader of 1.0, which passes over keys it does not know, reads them."""
        tokens = stepped(make_tokens(), (0.5,) * 16)
        data = to_bytes(tokens)
        length = int.from_bytes(data[12:16], "little")
        fields = json.loads(data[16 : 16 + length])
        del fields["steps"]
        text = json.dumps(fields, separators=(",", ":")).encode().ljust(length)
        bare = seal(data[:16] + text) + data[20 + length :]
        assert container.open(bare).recipe == replace(tokens.recipe, steps=None)
        assert torch.equal(container.open(bare).values, container.open(data).values)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("steps", None), ("steps", 7), ("steps", []), ("steps", ""), ("steps", "3f00" * 15), ("steps", "3f00" * 17),
            ("steps", "3F00" * 16), ("steps", "0000" * 16), ("steps", "7f80" * 16), ("steps", "7fc0" * 16),
            ("steps", "bf00" * 16), ("steps", "0001" * 16), ("steps", "zz00" * 16), ("steps", "3f00" * 15 + " 3f0"),
            ("step", 0), ("step", -1), ("step", 1e7), ("step", "2"), ("step", True), ("step", None),
            ("precision", "fp16"),
        ],
    )  # fmt: skip
    def test_hostile_steps_are_refused_in_a_sentence(self, key: str, value: object) -> None:
        parts = Parts.of(to_bytes(stepped(make_tokens(), (0.5,) * 16, step=2.0)))
        parts.header[key] = value
        with pytest.raises(TokenFileError, match=f"'{key}' should be") as caught:
            container.open(parts.pack())
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300

    def test_a_chunk_with_other_steps_than_the_header_is_refused(self) -> None:
        parts = Parts.of(to_bytes(stepped(make_tokens(chunks=2), (0.5,) * 16)))
        parts.header["steps"] = "3f00" * 15 + "3e80"
        with pytest.raises(TokenFileError, match="has other steps than the header says"):
            container.open(parts.pack())

    def test_a_step_without_steps_is_refused(self) -> None:
        parts = Parts.of(to_bytes(stepped(make_tokens(), (0.5,) * 16, step=2.0)))
        del parts.header["steps"]
        with pytest.raises(TokenFileError, match="beside 'steps'"):
            container.open(parts.pack())
        with pytest.raises(UsageError, match="with steps of each channel"):
            replace(make_tokens().recipe, step=2.0)

    @pytest.mark.parametrize(
        ("precision", "value"), [("fp16", 7e4), ("bf16", 3.4e38), ("q8", math.nan), ("fp32", math.inf)]
    )
    def test_values_that_do_not_fit_are_refused(self, precision: str, value: float) -> None:
        tokens = make_tokens(precision=precision)
        tokens.values[3, 4] = value
        with pytest.raises(UsageError):
            to_bytes(tokens)

    def test_values_whose_sum_is_too_large_are_still_finite(self) -> None:
        tokens = make_tokens(precision="fp32")
        tokens.values[:] = 3e38
        assert same(container.open(to_bytes(tokens)), tokens)

    def test_outliers_escape(self) -> None:
        tokens = stepped(make_tokens(), (0.0625,) * 16)
        usual = len(to_bytes(tokens))
        tokens.values[::50] += 9000
        data = to_bytes(tokens)
        assert usual + 3 * 16 * len(tokens.values[::50]) < len(data) < usual + 50 * 16 * len(tokens.values[::50])
        assert same(container.open(data), as_stored(tokens))


def stepped(tokens: Tokens, steps: tuple[float, ...], step: float | None = None) -> Tokens:
    return replace(tokens, recipe=replace(tokens.recipe, steps=steps, step=step))


class PlainDecoder:
    """The range decoder of FORMAT.md, symbol by symbol in whole numbers: no library, no floating point."""

    def __init__(self, words: bytes) -> None:
        self.words = iter(np.frombuffer(words, "<u4").tolist())
        self.low, self.range = 0, 2**64 - 1
        self.point = next(self.words, 0) << 32 | next(self.words, 0)

    def symbol(self, row: list[int]) -> int:
        unit = self.range >> 24
        target = (self.point - self.low) % 2**64 // unit
        below = symbol = 0
        while below + row[symbol] <= target:
            below += row[symbol]
            symbol += 1
        self.low, self.range = (self.low + unit * below) % 2**64, unit * row[symbol]
        if self.range < 2**32:
            self.low, self.range = self.low << 32 & 2**64 - 1, self.range << 32
            self.point = (self.point << 32 & 2**64 - 1) | next(self.words, 0)
        return symbol


class TestCoder:
    @pytest.mark.parametrize("table", range(TABLES))
    def test_frequencies_are_a_model(self, table: int) -> None:
        row = frequencies(table)
        assert row.sum() == TOTAL
        assert row.min() >= 1
        assert len(row) == 2 * reach(table) + 2
        assert row.argmax() == reach(table)

    def test_the_tables_never_change(self) -> None:
        digest = hashlib.sha256(b"".join(frequencies(t).astype("<i8").tobytes() for t in range(TABLES)))
        assert digest.hexdigest()[:16] == "dab97a3b7ff6a7f3"

    def test_symbols_against_the_plain_decoder(self) -> None:
        rng = np.random.default_rng(5)
        tables = rng.integers(0, TABLES, 400)
        symbols = np.array([rng.integers(0, 2 * reach(t) + 2) for t in tables], dtype=np.int32)
        encoder = SymbolEncoder()
        encoder.bells(symbols, tables)
        words = encoder.words()
        assert np.array_equal(SymbolDecoder(words).bells(tables), symbols)
        plain = PlainDecoder(words)
        for i in np.argsort(tables, kind="stable"):
            assert plain.symbol(frequencies(int(tables[i])).tolist()) == symbols[i]

    def test_bits_against_the_plain_decoder(self) -> None:
        rng = np.random.default_rng(6)
        ones = np.concatenate([rng.integers(1, TOTAL, 300), [1, TOTAL - 1] * 50])
        bits = rng.random(400) < ones / TOTAL
        bits[-3:] ^= True
        encoder = SymbolEncoder()
        encoder.bits(bits, ones)
        plain = PlainDecoder(encoder.words())
        assert [bool(plain.symbol([TOTAL - int(n), int(n)])) for n in ones] == bits.tolist()


class TestMask:
    def test_a_full_mask_costs_two_bytes_and_a_still_one_a_few(self) -> None:
        full = np.ones((9, 32, 32), dtype=bool)
        assert len(pack_mask(full)) == 2
        still = full & (np.arange(9) == 0)[:, None, None]
        assert len(pack_mask(still)) <= 8
        assert np.array_equal(unpack_mask(pack_mask(still), still.shape), still)

    def test_a_moving_blob_costs_far_less_than_its_entropy(self) -> None:
        t, y, x = np.mgrid[:9, :32, :32]
        mask = (np.hypot(y - 16, x - 6 - 2 * t) < 9) | (t == 0)
        p = mask[1:].mean()
        entropy = -(p * math.log2(p) + (1 - p) * math.log2(1 - p)) * mask[1:].size / 8
        assert len(pack_mask(mask)) < 0.4 * entropy

    def test_noise_costs_hardly_more_than_its_entropy(self) -> None:
        mask = np.random.default_rng(0).random((9, 32, 32)) < 0.5
        assert len(pack_mask(mask)) < 1.06 * mask.size / 8

    @pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 1), (1, 1, 5), (4, 1, 1), (3, 2, 9), (3, 9, 2)])
    def test_every_shape(self, shape: tuple[int, int, int]) -> None:
        rng = np.random.default_rng(1)
        for keep in (0, 0.3, 1):
            mask = rng.random(shape) < keep
            assert np.array_equal(unpack_mask(pack_mask(mask), shape), mask)


class TestSize:
    def test_numbers_cost_less_than_on_their_own(self) -> None:
        """Prediction and contexts must beat the entropy of each channel's numbers taken alone."""
        tokens = make_tokens(9, 24, 24, keep=0.5)
        numbers = quantise(tokens.values, choose_steps(tokens.values)).numpy()
        alone = sum(_entropy(numbers[:, c]) for c in range(numbers.shape[1])) / 8
        assert container.summary(to_bytes(tokens)).value_bytes < 0.9 * alone

    def test_white_noise_costs_hardly_more_than_its_entropy(self) -> None:
        mask = torch.ones(3, 24, 24).bool()
        values = torch.randn(int(mask.sum()), 16, generator=torch.Generator().manual_seed(0))
        data = pack_q8(values, mask.numpy(), torch.full((16,), 1 / 16))
        ideal = values.numel() * (math.log2(16) + 0.5 * math.log2(2 * math.pi * math.e)) / 8
        assert len(data) < 1.03 * ideal
        assert torch.equal(unpack_q8(data, mask.numpy(), 16), torch.round(values * 16) / 16)

    def test_summary_adds_up(self, tmp_path: Path) -> None:
        tokens = make_tokens(chunks=3, times=True)
        path = save(tokens, tmp_path / "a.inlay")
        s = container.summary(path)
        assert s.bytes == path.stat().st_size == s.header_bytes + s.mask_bytes + s.value_bytes
        assert s.bits_per_pixel == 8 * s.bytes / (s.frames * s.width * s.height)
        assert (s.frames, s.width, s.height, s.chunks) == (99, 93, 59, 3)
        assert (s.tokens, s.cells, s.keep_rate) == (len(tokens), tokens.cells, tokens.keep_rate)
        assert (s.frame_rate, s.version, s.library_version) == ("30000/1001", "1.0", inlay.__version__)
        assert s.seconds == pytest.approx(98 / 29.97 + 1001 / 30000)
        json.dumps(vars(s))


def _entropy(symbols: np.ndarray) -> float:
    _, counts = np.unique(symbols, return_counts=True)
    return float(-(counts * np.log2(counts / counts.sum())).sum())


class TestWriter:
    def test_chunk_by_chunk_is_the_same_file(self, tmp_path: Path) -> None:
        tokens = make_tokens(chunks=4)
        with TokenWriter(tmp_path / "a.inlay", info=replace(tokens.info, frames=1), recipe=tokens.recipe) as writer:
            for part in tokens.chunks():
                writer.append(part)
                assert not (tmp_path / "a.inlay").exists()
        assert (tmp_path / "a.inlay").read_bytes() == to_bytes(tokens)
        assert [p.name for p in tmp_path.iterdir()] == ["a.inlay"]

    def test_nothing_stays_after_an_error(self, tmp_path: Path) -> None:
        tokens = make_tokens()
        with (
            pytest.raises(RuntimeError),
            TokenWriter(tmp_path / "a.inlay", info=tokens.info, recipe=tokens.recipe) as writer,
        ):
            writer.append(tokens)
            raise RuntimeError
        assert list(tmp_path.iterdir()) == []

    def test_an_old_file_survives_a_failed_replacement(self, tmp_path: Path) -> None:
        tokens = make_tokens()
        path = save(tokens, tmp_path / "a.inlay")
        before = path.read_bytes()
        with pytest.raises(UsageError, match="exists already"):
            save(tokens, path)
        tokens.values[0, 0] = math.nan
        with pytest.raises(UsageError, match="NaN"):
            save(tokens, path, force=True)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_paths_are_checked_first(self, tmp_path: Path) -> None:
        tokens = make_tokens()
        with pytest.raises(OutputError, match="does not exist"):
            save(tokens, tmp_path / "no" / "a.inlay")
        with pytest.raises(OutputError, match="is a folder"):
            save(tokens, tmp_path)
        with (
            pytest.raises(UsageError, match="at least one chunk"),
            TokenWriter(tmp_path / "a.inlay", info=tokens.info, recipe=tokens.recipe),
        ):
            pass
        with pytest.raises(UsageError, match="pipe"):
            TokenWriter(Pipe(b""), info=tokens.info, recipe=tokens.recipe)
        assert list(tmp_path.iterdir()) == []

    def test_chunks_must_agree(self) -> None:
        tokens = make_tokens()
        with TokenWriter(io.BytesIO(), info=tokens.info, recipe=tokens.recipe) as writer:
            writer.append(tokens)
            for other, words in (
                (make_tokens(columns=13), "columns"),
                (make_tokens(channels=4), "channels"),
                (make_tokens(times=True), "presentation times"),
                (replace(tokens, recipe=replace(tokens.recipe, backbone="other")), "backbone"),
            ):
                with pytest.raises(UsageError, match=words):
                    writer.append(other)
        with pytest.raises(UsageError, match="closed"):
            writer.append(tokens)

    @pytest.mark.parametrize("name", ["x\n", "x" * 300, "\ud800"])
    def test_a_header_that_could_not_be_read_is_not_written(self, name: str) -> None:
        tokens = make_tokens()
        with pytest.raises(UsageError, match="backbone"):
            to_bytes(replace(tokens, recipe=replace(tokens.recipe, backbone=name)))


class TestReader:
    def test_random_access(self, tmp_path: Path) -> None:
        tokens = make_tokens(chunks=5, times=True)
        parts = list(as_stored(tokens).chunks())
        with TokenReader(save(tokens, tmp_path / "a.inlay")) as reader:
            assert len(reader) == 5
            assert (reader.info, reader.recipe) == (tokens.info, tokens.recipe)
            assert all(same(reader.read(i), parts[i]) for i in (4, 0, 2, -1))
            assert all(same(a, b) for a, b in zip(reader, parts, strict=True))
            assert reader.problems == []
            with pytest.raises(UsageError, match="0 to 4"):
                reader.read(5)

    def test_random_access_reads_only_its_chunk(self) -> None:
        file = Counted(to_bytes(make_tokens(chunks=30)))
        with TokenReader(file) as reader:
            before = file.count
            reader.read(17)
        assert before < 2500
        assert file.count - before < len(file.getvalue()) / 25

    def test_constriction_is_imported_late(self) -> None:
        code = "import sys, inlay.container; sys.exit('constriction' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Counted(io.BytesIO):
    """A file that counts what is read from it."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


class TestGolden:
    @pytest.mark.parametrize("name", GOLDEN)
    def test_old_files_stay_readable(self, name: str) -> None:
        expected = json.loads((ASSETS / "golden_v1.json").read_text())[name]
        path = ASSETS / f"golden_v1_{name}.inlay"
        tokens = container.open(path)
        found = {
            "file": hashlib.sha256(path.read_bytes()).hexdigest(),
            "values": hashlib.sha256(tokens.values.numpy().astype("<f4").tobytes()).hexdigest(),
            "mask": hashlib.sha256(tokens.mask.numpy().tobytes()).hexdigest(),
            "frames": tokens.info.frames,
            "frame_rate": str(tokens.info.fps),
        }
        assert found == expected
        assert container.verify(path) == ["chunk 2 goes on from the one before, in a file of clips on their own"]

    @pytest.mark.parametrize("name", [name for name in GOLDEN if name != "q8-quick"])  # deflate is free in its choices
    def test_they_are_written_to_the_byte(self, name: str) -> None:
        """But for the library's own version, which the header names."""
        golden, written = (ASSETS / f"golden_v1_{name}.inlay").read_bytes(), to_bytes(golden_tokens(name))
        before, now = Parts.of(golden), Parts.of(written)
        now.header["library_version"] = before.header["library_version"]
        assert (written[:12], now.chunks, list(now.header.items())) == (
            golden[:12], before.chunks, list(before.header.items()),
        )  # fmt: skip

    def test_a_newer_minor_version_and_unknown_keys_are_read(self) -> None:
        data = rewrite_header(to_bytes(make_tokens()), minor=7, extra=b'"colour":"bt709",')
        assert container.summary(data).version == "1.7"
        assert same(container.open(data), as_stored(make_tokens()))

    def test_another_major_version_is_refused_by_name(self) -> None:
        with pytest.raises(TokenFileError, match=r"version 2\.0.*reads 1\.x"):
            container.open(rewrite_header(to_bytes(make_tokens()), major=2))


def rewrite_header(data: bytes, *, major: int = 1, minor: int = 0, extra: bytes = b"") -> bytes:
    """The same file with other versions, and with an extra key in the place of padding."""
    from inlay.container.layout import MAGIC, seal

    length = int.from_bytes(data[12:16], "little")
    text = data[16 : 16 + length]
    text = (b"{" + extra + text[1:].rstrip()).ljust(length)
    assert len(text) == length
    prefix = MAGIC + major.to_bytes(2, "little") + minor.to_bytes(2, "little") + data[12:16]
    return seal(prefix + text) + data[20 + length :]


def test_only_chunks_of_one_video_are_joined() -> None:
    tokens = make_tokens(chunks=3)
    assert same(Tokens.join(tokens.chunks()), tokens)
    first = next(tokens.chunks())
    with pytest.raises(ShapeError, match=r"their tau is 0\.25 and 0\.5"):
        Tokens.join([first, make_tokens(tau=0.5)])
    with pytest.raises(ShapeError, match=r"their grid is \(8, 12\) and \(4, 12\)"):
        Tokens.join([first, make_tokens(rows=4)])


def test_a_large_chunk_is_fitted_to_a_sample_and_comes_back() -> None:
    """The model is fitted to some of the tokens; all of them come back, wild ones as well, and few bytes are lost."""
    from inlay.container import fit

    tokens = make_tokens(9, 80, 100, keep=0.7, channels=4)
    assert len(tokens) > 3 * fit.SAMPLE
    tokens.values[1::977] += 3e5  # steps of these are weighed in 64 bits
    data = to_bytes(tokens)
    assert same(container.open(data), as_stored(tokens))
    whole, fit.SAMPLE = fit.SAMPLE, 1 << 30
    try:
        assert len(data) < 1.01 * len(to_bytes(tokens))
    finally:
        fit.SAMPLE = whole


def test_masks_are_coded_as_wave_by_wave() -> None:
    """All waves at once give the bytes that the decoder's walk, wave by wave, would give."""
    from inlay.container.mask import _FULL, _Walk

    for seed, shape in enumerate([(5, 7, 9), (9, 1, 13), (3, 12, 1), (6, 20, 31)]):
        mask = np.random.default_rng(seed).random(shape) < 0.3
        mask[: seed % 3] = True
        full = int(np.flatnonzero(~mask.all(axis=(1, 2)))[0])
        walk, encoder = _Walk(mask.shape, full), SymbolEncoder()
        walk.field[1:, 1:-1, 1:-1] = mask
        for cells in walk.waves():
            context, bits = walk.contexts(cells), walk.flat[cells].astype(bool)
            encoder.bits(bits, walk.ones(context))
            walk.learn(context, bits)
        assert pack_mask(mask) == _FULL.pack(full) + encoder.words()


def test_the_largest_numbers_come_back() -> None:
    """Beyond what sums of 32 bits hold, where a decoder cannot know it beforehand."""
    mask = np.ones((4, 8, 8), dtype=bool)
    ramp = torch.arange(256.0)[:, None] * torch.tensor([1.0, -7, 31, 4000])
    values = 3_100_000 + ramp * torch.where(torch.arange(256)[:, None] % 5 > 0, 1.0, -2.0)
    assert torch.equal(unpack_q8(pack_q8(values, mask, torch.ones(4)), mask, 4), values)
