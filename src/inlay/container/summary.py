# SPDX-License-Identifier: Apache-2.0
"""A token file in, its figures and its faults out."""

from __future__ import annotations

from dataclasses import dataclass

from inlay.container.reader import TokenReader
from inlay.container.source import Source
from inlay.errors import TokenFileError


@dataclass(frozen=True, kw_only=True)
class FileSummary:
    """What `inlay info` shows. Bits count the whole file: header, mask, values, index and checksums."""

    frames: int
    width: int
    height: int
    fps: float
    frame_rate: str  # the same, exactly
    seconds: float
    backbone: str
    weight_hash: str
    tau: float
    criterion: str
    reference: str
    streaming: str
    precision: str
    fill: str
    cells: int
    tokens: int
    keep_rate: float
    bytes: int
    bits_per_pixel: float  # of all bytes, over frames * width * height
    header_bytes: int  # all that is neither mask nor values: header, chunk heads, times, index, checksums
    mask_bytes: int
    value_bytes: int
    chunks: int
    version: str  # of the format
    library_version: str


def summary(path: Source, *, keep_going: bool = False) -> FileSummary:
    """The figures of a token file; nothing is decoded."""
    with TokenReader(path, keep_going=keep_going) as reader:
        heads = [reader.head(i) for i in range(len(reader))]
        header, recipe, info = reader.header, reader.recipe, reader.info
        cells = sum(h.slots for h in heads) * header.rows * header.columns
        tokens = sum(h.tokens for h in heads)
        mask_bytes, value_bytes = sum(h.mask_bytes for h in heads), sum(h.value_bytes for h in heads)
        return FileSummary(
            frames=info.frames,
            width=info.width,
            height=info.height,
            fps=float(info.fps),
            frame_rate=f"{info.fps.numerator}/{info.fps.denominator}",
            seconds=_seconds(reader),
            backbone=recipe.backbone,
            weight_hash=recipe.weight_hash,
            tau=recipe.tau,
            criterion=recipe.criterion,
            reference=recipe.reference,
            streaming=recipe.streaming,
            precision=recipe.precision,
            fill=recipe.fill,
            cells=cells,
            tokens=tokens,
            keep_rate=tokens / cells,
            bytes=reader.size_bytes,
            bits_per_pixel=8 * reader.size_bytes / (info.frames * info.width * info.height),
            header_bytes=reader.size_bytes - mask_bytes - value_bytes,
            mask_bytes=mask_bytes,
            value_bytes=value_bytes,
            chunks=len(heads),
            version=header.version,
            library_version=header.library_version,
        )


def _seconds(reader: TokenReader) -> float:
    """The duration; a last frame without a successor stands for one frame interval."""
    interval = float(1 / reader.info.fps)
    if not reader.head(0).times:
        return reader.info.frames * interval
    first, last = reader.read(0).seconds, reader.read(-1).seconds
    if first is None or last is None:
        raise TokenFileError(f"{reader.name}: some chunks have presentation times and some do not")
    return float(last[-1] - first[0]) + interval


def verify(path: Source) -> list[str]:
    """Every fault that reading all of the file brings to light; an empty list means that it is sound."""
    problems: list[str] = []
    try:
        with TokenReader(path, keep_going=True) as reader:
            problems = reader.problems
            for _ in reader:
                pass
    except TokenFileError as error:
        problems.append(str(error))
    return problems
