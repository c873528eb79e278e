# SPDX-License-Identifier: Apache-2.0
"""Would a token file decode to what it says? Its own words, and what is known of the backbone that it names."""

from __future__ import annotations

from inlay.backbones import BACKBONES, BackboneSpec
from inlay.codec.config import continues, mode_of
from inlay.container import TokenReader
from inlay.container import verify as verify_container
from inlay.container.scan import Source
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError
from inlay.types import Recipe

_STATELESS = "{} cannot carry state between chunks, and these tokens ask for it"


def verify(path: Source, *, large: bool = False) -> list[str]:
    """Every fault of a token file; what has none decodes to exactly the frames it promises."""
    problems = verify_container(path, large=large)
    try:
        with TokenReader(path, keep_going=True, large=True) as reader:
            problems += table_faults(reader.recipe, reader.header.channels)
    except TokenFileError:
        pass  # which is among the problems already
    return problems


def check_file(reader: TokenReader) -> None:
    """Refuse a file that would not decode to what it says, before a network is loaded."""
    for fault in reader.inconsistencies() + table_faults(reader.recipe, reader.header.channels):
        raise TokenFileError(f"{reader.name}: {fault}; fetch the file again, or ask its maker")


def table_faults(recipe: Recipe, channels: int) -> list[str]:
    """What tokens say of a backbone of the table that is not so."""
    entry = BACKBONES.get(recipe.backbone)
    if entry is None:
        return []
    time_stride, space_stride, _ = entry.strides
    known = channels if entry.other_channels else entry.channels  # the loaded weights tell: check_tokens
    faults = _differences(recipe, channels, (known, time_stride, space_stride))
    if recipe.streaming == "stateful" and not entry.stateful:
        faults.append(_STATELESS.format(recipe.backbone))
    return faults


def check_tokens(tokens: Tokens, spec: BackboneSpec) -> None:
    """Refuse a chunk that this backbone would not turn into the frames it promises."""
    recipe, slots, frames = tokens.recipe, len(tokens.mask), tokens.info.frames
    faults = _differences(recipe, tokens.channels, (spec.channels, spec.time_stride, spec.space_stride))
    if mode_of(recipe) == "stateful" and not spec.stateful:
        faults.append(_STATELESS.format(spec.name))
    made = slots * spec.time_stride if continues(tokens) else spec.frames(slots)
    if made < frames:
        faults.append(f"a chunk of {slots} slots makes {made} frames, and it promises {frames}")
    if faults:
        raise TokenFileError(f"{faults[0]}; fetch the file again, or ask its maker")


def _differences(recipe: Recipe, channels: int, known: tuple[int, int, int]) -> list[str]:
    found = (channels, recipe.time_stride, recipe.space_stride)
    return [
        f"{recipe.backbone} has {right} {what}, and these tokens have {said}"
        for what, said, right in zip(("channels", "frames a slot", "pixels a cell"), found, known, strict=True)
        if said != right
    ]
