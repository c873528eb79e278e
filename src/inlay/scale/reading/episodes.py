# SPDX-License-Identifier: Apache-2.0
"""`EpisodeDataset`: the tokens of a LeRobot data set, episode by episode, with the actions that belong to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from inlay.codec import slot_of_frame
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError, UsageError, require
from inlay.scale.lerobot import Episode, read_episodes
from inlay.scale.reading.dataset import TokenDataset
from inlay.scale.store import Place


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EpisodeSample:
    """One episode.

    `columns` are those of its table that hold numbers, a row for each frame: `action`, `observation.state`,
    `timestamp` and what else was recorded. `slots[camera][i]` is the slot of the tokens that frame i belongs to.
    """

    index: int
    tasks: tuple[str, ...]
    tokens: dict[str, Tokens]  # by camera
    columns: dict[str, Tensor]
    slots: dict[str, Tensor]

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {list(numbers.shape)}" for name, numbers in self.columns.items())
        return f"EpisodeSample({self.index}: {'; '.join(self.tasks)}; {', '.join(self.tokens)}; {columns})"

    @property
    def action(self) -> Tensor:
        """[frames, A]"""
        return self.columns["action"]


class EpisodeDataset(Dataset[EpisodeSample]):
    """Episodes by number.

    data = EpisodeDataset("my_set", "my_set/tokens")
    sample = data[0]
    sample.tokens["observation.images.top"], sample.action

    Args:
        root: the LeRobot data set.
        tokens: what `inlay tokenize` made of it; several places where some of it was tokenised later.
        cameras: which, or the one; all by default.
        columns: of the tables; all that hold numbers by default.
    """

    def __init__(
        self,
        root: str | Path,
        tokens: Place | Sequence[Place],
        *,
        cameras: str | tuple[str, ...] | None = None,
        columns: str | tuple[str, ...] | None = None,
    ) -> None:
        cameras, columns = ((names,) if isinstance(names, str) else names for names in (cameras, columns))
        self.root, self.columns = Path(root), columns
        self.tokens = TokenDataset(tokens)
        self._places = {record.source: i for i, record in enumerate(self.tokens.records())}
        episodes = read_episodes(root)
        self._listed, known = len(episodes), tuple(episodes[0].cameras)
        for camera in cameras or ():
            if camera not in known:
                raise UsageError(f"{root} has no camera {camera!r}; it has {', '.join(known)}")
        self.cameras = cameras or known
        self.episodes = [e for e in episodes if all(e.source(camera) in self._places for camera in self.cameras)]
        if not self.episodes:
            place = tokens if isinstance(tokens, str | PathLike) else ", ".join(map(str, tokens))
            raise UsageError(f"{place} holds no tokens of {root}; make them: inlay tokenize {root} OUT")

    def __repr__(self) -> str:
        return f"EpisodeDataset({len(self):,} episodes of {self.root}; {', '.join(self.cameras)})"

    @property
    def missing(self) -> int:
        """Episodes that were not tokenised: `quarantine.csv` says why."""
        return self._listed - len(self.episodes)

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, i: int) -> EpisodeSample:
        episode = self.episodes[i]
        tokens = {camera: self.tokens[self._places[episode.source(camera)]].tokens for camera in self.cameras}
        columns = read_columns(episode, self.columns)
        for camera, found in tokens.items():
            if found.info.frames != episode.length:
                raise TokenFileError(
                    f"episode {episode.index} has {episode.length} rows, and the tokens of {camera} "
                    f"{found.info.frames} frames; tokenise the data set again"
                )
        slots = {camera: frame_slots(found) for camera, found in tokens.items()}
        return EpisodeSample(index=episode.index, tasks=episode.tasks, tokens=tokens, columns=columns, slots=slots)


def frame_slots(tokens: Tokens) -> Tensor:
    """[frames] the slot of each frame, counted through all chunks."""
    found, before = [], 0
    for chunk in tokens.chunks():
        found.append(slot_of_frame(chunk) + before)
        before += len(chunk.mask)
    return torch.cat(found)


def read_columns(episode: Episode, wanted: tuple[str, ...] | None) -> dict[str, Tensor]:
    """The numbers of an episode's table, a row for each frame."""
    arrow, parquet = require("pyarrow", extra="scale"), require("pyarrow.parquet", extra="scale")
    try:
        only = [("episode_index", "=", episode.index)]
        there = parquet.read_schema(episode.data).names
        if absent := [name for name in wanted or () if name not in there]:
            raise UsageError(f"{episode.data} has no column {absent[0]!r}; it has {', '.join(there)}")
        table = parquet.read_table(episode.data, filters=only, columns=list(wanted) if wanted else None)
    except (arrow.ArrowException, OSError, KeyError) as error:
        raise UsageError(f"{episode.data} cannot be read ({str(error).splitlines()[0]}); fetch it again") from error
    if len(table) != episode.length:
        raise UsageError(f"{episode.data} has {len(table)} rows of episode {episode.index}, and not {episode.length}")
    found = {name: _numbers(table.column(name)) for name in table.column_names}
    return {name: numbers for name, numbers in found.items() if numbers is not None}


def _numbers(column: Any) -> Tensor | None:
    """A column as a tensor of its own dtype; None for text and for lists of different lengths."""
    types = require("pyarrow", extra="scale").types
    values, shape = column.combine_chunks(), [len(column)]
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        inner = values.flatten()
        if values.null_count or len(values.value_lengths().unique()) != 1:
            return None
        shape.append(len(inner) // len(values))
        values = inner
    if not (types.is_integer(values.type) or types.is_floating(values.type) or types.is_boolean(values.type)):
        return None
    return torch.from_numpy(values.to_numpy(zero_copy_only=False).reshape(shape).copy())
