# SPDX-License-Identifier: Apache-2.0
"""The header of a token file: JSON under a checksum, every field checked when it is read."""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import inlay
from inlay.container import layout
from inlay.errors import ConfigError, TokenFileError
from inlay.types import (
    FASTEST,
    KEY_SLOTS,
    LARGEST_STEP,
    PRECISIONS,
    SCALES,
    SLOWEST,
    STEPPED,
    Recipe,
    checked_steps,
)

MAX_SIDE = 1 << 16  # pixels
MAX_CHANNELS = 1 << 12
MAX_STRIDE = 1 << 8
MAX_TEXT = 200
_COUNTS = 1 << 53  # what JSON readers everywhere hold exactly
_HEX = re.compile("[0-9a-f]*")
_RATE = re.compile(r"[1-9][0-9]{0,17}/[1-9][0-9]{0,17}")


@dataclass(frozen=True, kw_only=True)
class FileHeader:
    """The JSON header. `frames`, `chunks` and `file_bytes` are None in a file that was never finished."""

    width: int
    height: int
    frame_rate: Fraction
    rows: int
    columns: int
    channels: int
    recipe: Recipe
    frames: int | None = None
    chunks: int | None = None
    file_bytes: int | None = None
    version: str = ""  # of the format; stands before the JSON, not in it. None given: the least that has all it uses
    library_version: str = inlay.__version__

    def __post_init__(self) -> None:
        if not self.version:
            object.__setattr__(self, "version", f"{layout.MAJOR}.{self.minor}")

    @property
    def minor(self) -> int:
        """The least minor version that has all that is used here."""
        if self.recipe.scale != "1" or self.recipe.key_slots != "whole":
            return 2
        return int(self.recipe.steps is not None or self.recipe.precision == "q8-quick")

    @property
    def cells(self) -> int:
        """Of one slot."""
        return self.rows * self.columns

    def pack(self) -> bytes:
        """The beginning of a file, as long whether the counts are known or not: they are filled in at the end."""
        size = 3 * len("1234567890123") + len(self._json(blank=True))
        text = self._json().ljust(size).encode()
        return layout.seal(layout.pack_prefix(len(text), self.minor) + text)

    def _json(self, *, blank: bool = False) -> str:
        r, rate = self.recipe, self.frame_rate
        fields = {
            "backbone": r.backbone,
            "weight_hash": r.weight_hash,
            "grid": [self.rows, self.columns],
            "channels": self.channels,
            "time_stride": r.time_stride,
            "space_stride": r.space_stride,
            "width": self.width,
            "height": self.height,
            "frame_rate": f"{rate.numerator}/{rate.denominator}",
            "frames": None if blank else self.frames,
            "chunks": None if blank else self.chunks,
            "file_bytes": None if blank else self.file_bytes,
            "tau": "infinite" if math.isinf(r.tau) else float(r.tau),
            "criterion": r.criterion,
            "reference": r.reference,
            "precision": r.precision,
            "fill": r.fill,
            "library_version": self.library_version,
            "created_by": r.created_by,
        }
        if r.streaming != "clips":  # what goes without saying is not said: files of clips are older than this key
            fields["streaming"] = r.streaming
        if r.step is not None:
            fields["step"] = r.step
        if r.steps is not None:
            fields["steps"] = _pack_steps(r.steps)
        if r.scale != "1":
            fields["scale"] = r.scale
        if r.key_slots != "whole":
            fields["key_slots"] = r.key_slots
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def unpack(text: bytes, *, version: str = "") -> FileHeader:
        fields = _Fields(_parse(text))
        height, width = fields.whole("height", MAX_SIDE), fields.whole("width", MAX_SIDE)
        space_stride = fields.whole("space_stride", MAX_STRIDE)
        rows, columns = fields.grid()
        channels = fields.whole("channels", MAX_CHANNELS)
        recipe = fields.recipe(space_stride, channels)
        coded_height, coded_width = recipe.coded(height, width)
        for name, cells, side in (("rows", rows, coded_height), ("columns", columns, coded_width)):
            wanted = -(-side // space_stride)
            if cells != wanted:
                raise TokenFileError(
                    f"the header promises {cells} {name} for {side} pixels, which make {wanted} of {space_stride} each"
                )
        return FileHeader(
            width=width, height=height, frame_rate=fields.rate(), rows=rows, columns=columns,
            channels=channels, recipe=recipe,
            frames=fields.count("frames"), chunks=fields.count("chunks"), file_bytes=fields.count("file_bytes"),
            version=version, library_version=fields.text("library_version"),
        )  # fmt: skip


def _parse(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.decode(), parse_constant=_refuse, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        raise TokenFileError(f"the header is not the JSON it should be: {str(error)[:MAX_TEXT]}") from error
    if not isinstance(found, dict):
        raise TokenFileError(f"the header should be a JSON object; found {type(found).__name__}")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


class _Fields:
    """Header fields by name, each of the type and in the range it should be."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def _get(self, name: str) -> Any:
        if name not in self._found:
            raise TokenFileError(f"the header has no {name!r}; fetch the file again, or ask its maker")
        return self._found[name]

    def _wrong(self, name: str, wanted: str) -> TokenFileError:
        return TokenFileError(f"the header's {name!r} should be {wanted}; found {ascii(self._found[name])[:80]}")

    def whole(self, name: str, largest: int) -> int:
        value = self._get(name)
        if type(value) is not int or not 1 <= value <= largest:
            raise self._wrong(name, f"a whole number from 1 to {largest}")
        return value

    def count(self, name: str) -> int | None:
        return None if self._get(name) is None else self.whole(name, _COUNTS)

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
            raise self._wrong(name, f"printable text of at most {MAX_TEXT} characters")
        return value

    def has(self, name: str) -> bool:
        return name in self._found

    def grid(self) -> tuple[int, int]:
        value = self._get("grid")
        sides = value if isinstance(value, list) else []
        if len(sides) != 2 or not all(type(n) is int and 1 <= n <= MAX_SIDE for n in sides):
            raise self._wrong("grid", "[rows, columns]")
        if sides[0] * sides[1] > layout.MAX_CELLS:
            raise self._wrong("grid", f"at most {layout.MAX_CELLS:,} cells")
        return sides[0], sides[1]

    def rate(self) -> Fraction:
        value = self._get("frame_rate")
        if not isinstance(value, str) or not _RATE.fullmatch(value):
            raise self._wrong("frame_rate", 'a fraction such as "30000/1001"')
        rate = Fraction(value)
        if not SLOWEST <= rate <= FASTEST:
            raise self._wrong("frame_rate", f"from {SLOWEST} to {FASTEST} frames a second")
        return rate

    def steps(self, channels: int) -> tuple[float, ...] | None:
        if not self.has("steps"):
            return None
        value, wanted = self._get("steps"), f"{4 * channels} hex digits: the step of each of {channels} channels"
        if not isinstance(value, str) or len(value) != 4 * channels or not _HEX.fullmatch(value):
            raise self._wrong("steps", wanted)
        try:
            return checked_steps(_unpack_steps(value))
        except ConfigError as error:
            raise self._wrong("steps", f"{wanted}, each from 1e-37 to 1e30") from error

    def step(self) -> float | None:
        if not self.has("step"):
            return None
        value = self._get("step")
        if type(value) not in (int, float) or not 0 < value <= LARGEST_STEP or not self.has("steps"):
            raise self._wrong("step", f"a number above 0 and at most {LARGEST_STEP:g}, beside 'steps'")
        return float(value)

    def choice(self, name: str, among: Iterable[str]) -> str:
        """One of a few words, the first of them where nothing is said."""
        names = list(among)
        value = self._get(name) if self.has(name) else names[0]
        if not isinstance(value, str) or value not in names:
            raise self._wrong(name, f"one of {', '.join(names)}")
        return value

    def recipe(self, space_stride: int, channels: int) -> Recipe:
        tau = self._get("tau")
        if tau == "infinite":
            tau = math.inf
        elif type(tau) not in (int, float) or not 0 <= tau <= sys.float_info.max:
            raise self._wrong("tau", 'a number from 0, or "infinite"')
        if self._get("precision") not in PRECISIONS:
            raise self._wrong("precision", f"one of {', '.join(PRECISIONS)}")
        if self.has("steps") and self._get("precision") not in STEPPED:
            raise self._wrong("precision", f"{' or '.join(STEPPED)} beside 'steps'")
        return Recipe(
            backbone=self.text("backbone"),
            weight_hash=self.text("weight_hash"),
            tau=float(tau),
            criterion=self.text("criterion"),
            reference=self.text("reference"),
            precision=self.text("precision"),
            fill=self.text("fill"),
            streaming=self.text("streaming") if self.has("streaming") else "clips",
            time_stride=self.whole("time_stride", MAX_STRIDE),
            space_stride=space_stride,
            created_by=self.text("created_by"),
            step=self.step(),
            steps=self.steps(channels),
            key_slots=self.choice("key_slots", KEY_SLOTS),
            scale=self.choice("scale", SCALES),
        )


def _pack_steps(steps: tuple[float, ...]) -> str:
    """The upper halves of each step as an f32, in hex: all there is of a bfloat16."""
    return "".join(struct.pack(">f", step)[:2].hex() for step in steps)


def _unpack_steps(text: str) -> tuple[float, ...]:
    words = [text[at : at + 4] for at in range(0, len(text), 4)]
    return struct.unpack(f">{len(words)}f", bytes.fromhex("".join(f"{word}0000" for word in words)))
