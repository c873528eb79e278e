# SPDX-License-Identifier: Apache-2.0
"""What is hunted: each target makes a case from a random generator, tries it, and raises where something is unexpected.

A case may end in an error of the library, in one line, or in what was promised. Anything else is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from inlay import container
from inlay.codec import verify
from inlay.container import TokenReader, as_stored, to_bytes
from inlay.container.header import FileHeader
from inlay.container.layout import CRC_BYTES, PREFIX_BYTES
from inlay.container.tokens import Tokens
from inlay.errors import InlayError, TokenFileError
from inlay.masking import Profile
from inlay.scale.layout import DatasetRecord, manifest_lines
from inlay.scale.tables import read_table
from inlay.scale.tars import members
from inlay.types import Recipe, Span, VideoInfo
from inlay.weightfile import load_weights, save_weights
from tests.hunt.forge import ODD, WHOLE, Parts, forged

LONGEST_ERROR = 1000  # characters
FEWER_Q8 = (1, 3, 1, 3, 3, 3)  # how often each of the seeds is forged: q8 takes ten times as long to read


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a case ended: refused, or read; and what it was, to be looked at."""

    refused: bool
    case: bytes
    readings: int = 1  # how often the case was read


Target = Callable[[random.Random, Path], Outcome]


def seeds() -> list[Tokens]:
    """Small files of every kind: precisions, times, key and other chunks, empty ones, many channels."""
    found = []
    for number, (precision, streaming, times) in enumerate(
        [
            ("q8", "clips", False),
            ("fp16", "clips", True),
            ("q8", "stateful", True),
            ("bf16", "dual-cache", False),
            ("q8-quick", "stateful", False),
            ("fp16", "stateful", False),
        ]
    ):
        draw = torch.Generator().manual_seed(number)
        keys = (True, True) if streaming == "clips" else (True, False, False)
        lengths = [(2, 5) if key or streaming == "dual-cache" else (1, 4) for key in keys]
        mask = torch.rand(sum(slots for slots, _ in lengths), 2, 3, generator=draw) < 0.5
        newest = (precision, streaming) == ("fp16", "stateful")  # a file of format 1.2
        mask[0], mask[-1] = mask[0] if newest else True, False
        frames = sum(count for _, count in lengths)
        steps = {"step": 2.0, "steps": (0.05,) * 16} if (precision, times) == ("q8", True) else {}  # of format 1.1
        found.append(
            Tokens(
                values=torch.randn(int(mask.sum()), 16, generator=draw),
                mask=mask,
                info=VideoInfo(width=24 << newest, height=15 << newest, fps=Fraction(25), frames=frames),
                recipe=Recipe(
                    backbone="mini",
                    weight_hash="ab",
                    tau=0.5,
                    precision=precision,
                    streaming=streaming,
                    fill="hold",
                    scale="1/2" if newest else "1",
                    key_slots="thin" if newest else "whole",
                    **steps,  # type: ignore[arg-type]
                ),
                spans=tuple(Span(slots=s, frames=f, key=k) for k, (s, f) in zip(keys, lengths, strict=True)),
                seconds=torch.arange(frames).double() / 20 if times else None,
            )
        )
    return found


SEEDS = seeds()
FILES = [(to_bytes(tokens), as_stored(tokens)) for tokens in SEEDS]


def same(a: Tokens, b: Tokens) -> bool:
    times = a.seconds is b.seconds is None or torch.equal(a.seconds, b.seconds)
    whole = torch.equal(a.values, b.values) and torch.equal(a.mask, b.mask) and times
    return whole and (a.info, a.recipe, a.spans) == (b.info, b.recipe, b.spans)


def refused(error: InlayError) -> bool:
    text = str(error)
    assert text and "\n" not in text and len(text) <= LONGEST_ERROR, f"an error of one line was due: {text[:200]!r}"
    return True


def damaged(data: bytes, rng: random.Random) -> bytes:
    """What accidents do: bits flip, bytes go, come twice or are overwritten; checksums stay as they were."""
    kind, at = rng.randrange(6), rng.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + rng.randint(1, 80) :]
    if kind == 2:
        return data[: at + rng.randint(1, 80)] + data[at:]
    if kind == 3:
        return data + rng.randbytes(rng.randint(1, 64))
    changed = bytearray(data)
    for place in [at] if kind == 4 else rng.choices(range(len(data)), k=rng.choice((2, 8, 40))):
        changed[place] = rng.choice((0, 255, changed[place] ^ 1 << rng.randrange(8)))
    return bytes(changed)


def damaged_container(rng: random.Random, folder: Path) -> Outcome:
    """A token file that suffered: the very same tokens, or an error."""
    data, tokens = rng.choice(FILES)
    case = damaged(data, rng)
    try:
        found = container.open(case)
    except TokenFileError as error:
        return Outcome(refused=refused(error), case=case)
    assert same(found, tokens), "other tokens than those that were written"
    return Outcome(refused=False, case=case)


def forged_container(rng: random.Random, folder: Path) -> Outcome:
    """A token file that lies under right checksums: an error, or tokens that are what the file says."""
    case = forged(rng.choices(FILES, FEWER_Q8)[0][0], rng)
    problems = verify(case)
    assert all("\n" not in problem and len(problem) <= LONGEST_ERROR for problem in problems), "a line each was due"
    if problems and rng.random() < 0.7:  # verify reads as much as the others do, so these need not be tried each time
        return Outcome(refused=True, case=case)
    try:
        found = container.open(case)
    except TokenFileError as error:
        assert problems, f"verify passed what cannot be opened: {error}"
        with contextlib.suppress(TokenFileError):
            container.summary(case)
        return Outcome(refused=refused(error), case=case, readings=2)
    assert bool(found.values.isfinite().all()), "a value is not finite"
    with TokenReader(case) as reader:
        assert problems or found.info.frames == reader.header.frames, "verify passed another number of frames"
        assert (found.info.width, found.info.height) == (reader.header.width, reader.header.height)
    if not problems and rng.random() < 0.1:
        assert same(container.open(to_bytes(found)), as_stored(found)), "what was read cannot be written again"
    return Outcome(refused=False, case=case, readings=3)


def header_json(rng: random.Random, folder: Path) -> Outcome:
    header = dict(Parts.of(rng.choice(FILES)[0]).header)
    case = wrong_json(header, rng)
    try:
        found = FileHeader.unpack(case)
    except TokenFileError as error:
        return Outcome(refused=refused(error), case=case)
    assert FileHeader.unpack(found.pack()[PREFIX_BYTES:-CRC_BYTES]) == found, "a header that cannot be written again"
    return Outcome(refused=False, case=case)


def wrong_json(record: dict[str, Any], rng: random.Random) -> bytes:
    """JSON of a record with fields changed, nested deep, or damaged as text."""
    kind = rng.randrange(4)
    if kind == 0:
        return damaged(json.dumps(record).encode(), rng)
    name = rng.choice(list(record))
    if kind == 1:
        return json.dumps(record).replace(f'"{name}":', rng.choice((f'"{name}":1,"{name}":', '"":', ""))).encode()
    if kind == 2 and rng.random() < 0.2:
        deep = rng.choice((b"[", b'{"a":')) * rng.choice((10, 1000, 60_000))
        return b'{"' + name.encode() + b'":' + deep + b"}"
    value = rng.choice((*WHOLE, *ODD, 10**5000 if rng.random() < 0.01 else 1e999, [None], [[1]], {"a": 1}))
    with contextlib.suppress(ValueError):  # a number that Python itself does not write
        return json.dumps(record | {name: value}).encode()
    return b"{}"


def profile(rng: random.Random, folder: Path) -> Outcome:
    record = {
        "backbone": "mini", "weight_hash": "ab", "tau": 0.3, "taus": [0.1, 0.2], "keep_rates": [0.9, 0.5],
        "latent_mean": [0.0, 1.0], "latent_std": [1.0, 1.0], "clips": 3, "data": "a clip",
        "gains": [3.0, 0.5], "step": 2.0, "thin": True,
    }  # fmt: skip
    case = wrong_json(record, rng)
    path = folder / "profile.json"
    path.write_bytes(case)
    try:
        found = Profile.load(path)
    except InlayError as error:
        return Outcome(refused=refused(error), case=case)
    assert found.tau >= 0 and len(found.taus) == len(found.keep_rates)
    found.save(path)
    assert Profile.load(path) == found, "a profile that cannot be written again"
    return Outcome(refused=False, case=case)


def weights(rng: random.Random, folder: Path) -> Outcome:
    """A safetensors file with a wrong header, of right or wrong length."""
    path = folder / "weights.safetensors"
    if not path.exists():
        save_weights(path, {"a": torch.ones(4, 4), "b": torch.zeros(3)}, {"kind": "x"}, stored="int10")
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    if rng.random() < 0.3:
        case = damaged(whole, rng)
    else:
        text = wrong_json(json.loads(whole[8 : 8 + size]), rng)
        promised = len(text) if rng.random() < 0.8 else rng.choice((0, 1, 2**31, 2**63, 2**64 - 1))
        case = promised.to_bytes(8, "little") + text + whole[8 + size :]
    forged_path = folder / "forged.safetensors"
    forged_path.write_bytes(case)
    try:
        load_weights(forged_path)
    except InlayError as error:
        return Outcome(refused=refused(error), case=case)
    return Outcome(refused=False, case=case)


def manifest(rng: random.Random, folder: Path) -> Outcome:
    record = {
        "key": "00000000", "source": "a.mp4", "sha256": "00", "frames": 33, "width": 64, "height": 64, "fps": "25/1",
        "tokens": 9, "cells": 90, "keep_rate": 0.1, "bytes": 99, "shard": "shards/shard-00000.tar", "offset": 512,
    }  # fmt: skip
    whole = {
        "layout_version": 1, "format": "tar", "recipe": {}, "options": {}, "videos": 1, "quarantined": 0, "frames": 33,
        "tokens": 9, "cells": 90, "keep_rate": 0.1, "bytes": 99, "latent_count": 1, "latent_mean": [0.0],
        "latent_std": [1.0], "shards": [],
    }  # fmt: skip
    lines = rng.random() < 0.7
    case = wrong_json(record if lines else whole, rng)
    text = case.decode("utf-8", "replace")
    try:
        if lines:
            for found in manifest_lines(text):
                assert type(found.offset) is type(found.frames) is int and isinstance(found.source, str)
        else:
            DatasetRecord.parse(text)
    except InlayError as error:
        return Outcome(refused=refused(error), case=case)
    return Outcome(refused=False, case=case)


def listing(rng: random.Random, folder: Path) -> Outcome:
    """Lists and tables of videos, with captions."""
    suffix = rng.choice((".txt", ".csv", ".tsv", ".jsonl"))
    rows = ["path,caption\n", "a.mp4,a cat\n", 'b.mp4,"two ""words"" and\na line"\n', "c.mp4,\n"]
    text = "".join(rows).replace(",", "\t" if suffix == ".tsv" else ",").encode()
    if suffix == ".jsonl":
        text = b'{"path": "a.mp4"}\n' + wrong_json({"path": "b.mp4", "caption": "a cat"}, rng) + b"\n"
    case = damaged(text, rng) if rng.random() < 0.7 else text + rng.choice((b"\0.mp4\n", b'"', b"\xff", b"," * 5000))
    path = folder / f"list{suffix}"
    path.write_bytes(case)
    try:
        list(read_table(str(path)))
    except InlayError as error:
        return Outcome(refused=refused(error), case=case)
    return Outcome(refused=False, case=case)


def caption(rng: random.Random, folder: Path) -> Outcome:
    """Captions beside videos in a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        texts = {
            "a.mp4": b"video",
            "a.json": wrong_json({"caption": "a cat", "n": 1}, rng),
            "b.mp4": b"",
            "b.txt": b"\xff",
        }
        for name, data in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    case = buffer.getvalue() if rng.random() < 0.7 else damaged(buffer.getvalue(), rng)
    path = folder / "captions.tar"
    path.write_bytes(case)
    try:
        list(members(str(path), (".mp4",)))
    except InlayError as error:
        return Outcome(refused=refused(error), case=case)
    return Outcome(refused=False, case=case)


TARGETS: dict[str, Target] = {
    "damaged": damaged_container,
    "forged": forged_container,
    "header": header_json,
    "profile": profile,
    "weights": weights,
    "manifest": manifest,
    "list": listing,
    "caption": caption,
}
