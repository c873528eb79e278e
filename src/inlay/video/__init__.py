# SPDX-License-Identifier: Apache-2.0
"""Video files and pipes to frames and back: decode, encode, resize, crop, frame rate and times; clips made by code."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_LAZY = {  # public name -> its module, imported on first use
    "Geometry": "inlay.video.geometry",
    "VideoReader": "inlay.video.reader",
    "open_video": "inlay.video.reader",
    "read_video": "inlay.video.reader",
    "VideoWriter": "inlay.video.writer",
    "write_video": "inlay.video.writer",
    "check_target": "inlay.video.target",
}

__all__ = [
    "Geometry",
    "VideoReader",
    "VideoWriter",
    "check_target",
    "open_video",
    "read_video",
    "synthetic",
    "write_video",
]

if TYPE_CHECKING:
    from inlay.video import synthetic
    from inlay.video.geometry import Geometry
    from inlay.video.reader import VideoReader, open_video, read_video
    from inlay.video.target import check_target
    from inlay.video.writer import VideoWriter, write_video


def __getattr__(name: str) -> Any:
    if name == "synthetic":
        return import_module("inlay.video.synthetic")
    if name not in _LAZY:
        raise AttributeError(f"module 'inlay.video' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
