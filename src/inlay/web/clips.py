# SPDX-License-Identifier: Apache-2.0
"""The clips made by code that the page offers to those who have no video at hand; each is encoded once for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from inlay.codec import CLIP_FRAMES, WholeVideo
from inlay.errors import pick
from inlay.tokenizer import Tokenizer
from inlay.video import synthetic
from inlay.video.frames import Video
from inlay.web.sheets import Sheets, write_sheets

FRAMES, SIDE, THUMB = 49, 256, 96  # thirteen slots, so that slot 0 is less than a tenth of the cells
CLIPS: dict[str, Callable[[int, int, int], Video]] = {
    "Mill, train and ball": synthetic.demo_clip,
    "Moving square": partial(synthetic.moving_square, step=(5, 3)),
    "Scene cut": synthetic.scene_cut,
}
CODE = {  # the same in the words of Python
    "Mill, train and ball": f"synthetic.demo_clip({FRAMES}, {SIDE}, {SIDE})",
    "Moving square": f"synthetic.moving_square({FRAMES}, {SIDE}, {SIDE}, step=(5, 3))",
    "Scene cut": f"synthetic.scene_cut({FRAMES}, {SIDE}, {SIDE})",
}
DEFAULT = next(iter(CLIPS))
_PAINTING = threading.Lock()


def built_in(name: str) -> Video:
    with _PAINTING:  # who comes while it is painted waits for that one
        return _painted(name)


@lru_cache(maxsize=len(CLIPS))  # painting the landscape takes seconds, and a clip is never written to
def _painted(name: str) -> Video:
    return pick("built-in clip", name, CLIPS)(FRAMES, SIDE, SIDE)


def thumbnails() -> dict[str, Video]:
    """A small frame of each, from the middle."""
    return {name: paint(FRAMES, THUMB, THUMB)[FRAMES // 3 : FRAMES // 3 + 1] for name, paint in CLIPS.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedClip:
    """A clip, its latents and its pictures."""

    video: Video
    latents: WholeVideo
    sheets: Sheets
    encode_seconds: float


@dataclass(kw_only=True, eq=False)
class EncodedClips:
    """The built-in clips that somebody has asked for."""

    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _clips: dict[str, EncodedClip] = field(default_factory=dict)

    def get(self, tokenizer: Tokenizer, name: str, advance: Callable[[float, str], None]) -> EncodedClip:
        """With latents of the caller's own, to be closed by the caller."""
        with self._lock:
            if name not in self._clips:
                advance(0.0, "Painting the clip")
                video = built_in(name)
                sheets = write_sheets(video, self.folder / f"clip{len(self._clips)}")
                start = time.perf_counter()
                latents = WholeVideo.of(tokenizer, pieces(video, advance))
                spent = time.perf_counter() - start
                self._clips[name] = EncodedClip(video=video, latents=latents, sheets=sheets, encode_seconds=spent)
            shared = self._clips[name]
            twin = WholeVideo(shared.latents.parts, shared.latents.config)
            for chunk in shared.latents.spool:
                twin.add(chunk)
            return replace(shared, latents=twin)

    def close(self) -> None:
        with self._lock:
            for clip in self._clips.values():
                clip.latents.close()
            self._clips.clear()


def pieces(video: Video, advance: Callable[[float, str], None]) -> Iterator[Video]:
    """The video in chunks, each announced as it is taken."""
    for first in range(0, len(video), CLIP_FRAMES):
        advance(0.2 + 0.75 * first / len(video), "Encoding")
        yield video[first : first + CLIP_FRAMES]
