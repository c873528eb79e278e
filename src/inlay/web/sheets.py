# SPDX-License-Identifier: Apache-2.0
"""The frames of a video as sheets of pictures, for a viewer that seeks and plays without asking the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from inlay.draw.images import image_bytes
from inlay.video.frames import Video

MOST_SIDE = 2048  # of a sheet: more than this is too much for some phones


@dataclass(frozen=True, kw_only=True)
class Sheets:
    """Where the sheets lie; frames stand in rows."""

    paths: tuple[Path, ...]
    columns: int
    each: int  # frames of a sheet


def write_sheets(video: Video, folder: Path) -> Sheets:
    """Write the frames of a video into a folder that is made for them."""
    columns, rows = max(MOST_SIDE // video.width, 1), max(MOST_SIDE // video.height, 1)
    columns = min(columns, len(video))
    each = columns * rows
    folder.mkdir(parents=True)
    paths = []
    for number, first in enumerate(range(0, len(video), each)):
        frames = video.frames[first : first + each]
        used = -(-len(frames) // columns)
        empty = frames.new_zeros(used * columns - len(frames), *frames.shape[1:])
        grid = torch.cat([frames, empty]).unflatten(0, (used, columns))
        path = folder / f"{number}.webp"
        path.write_bytes(image_bytes(grid.permute(0, 2, 1, 3, 4).flatten(2, 3).flatten(0, 1), "webp"))
        paths.append(path)
    return Sheets(paths=tuple(paths), columns=columns, each=each)
