# SPDX-License-Identifier: Apache-2.0
"""What an unfinished token file was made from, in a file beside it: settings, and a digest of the frames of each chunk.

An interrupted encode goes on only with the same video and the same settings; anything else would be two videos in one.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from inlay.codec.whole import VideoEncoder
from inlay.container import part_of
from inlay.errors import UsageError
from inlay.files import SOURCE, open_part, write_atomic, writing
from inlay.video.frames import Video

ROW_STEP = 4  # rows from one that is looked at to the next: other videos differ there, at a quarter of the price
DIGEST_BYTES = 16


def trail_of(path: str | PathLike[str]) -> Path:
    """The file beside the part of a token file."""
    return Path(f"{part_of(path)}{SOURCE}")


class Trail:
    """Follows the frames of a video as they are encoded.

    Args:
        path: of the token file.
        after: frames that an earlier run has encoded, and that stay.
        begun: an earlier run has left a part, which must be of this video, whether or not anything of it stays.
    """

    def __init__(
        self, path: str | PathLike[str], encoder: VideoEncoder, *, after: int = 0, begun: bool = False
    ) -> None:
        self.path, self.settings = trail_of(path), settings_of(encoder)
        self._known: list[tuple[int, str]] = []  # (frames, digest after them) of the chunks that stay
        self._check: tuple[int, str] | None = None
        self._ahead: deque[bytes] = deque()  # digests after frames that are in no chunk yet
        self._taken = self._noted = 0
        self._digest = bytes(DIGEST_BYTES)
        self._file: BinaryIO | None = None
        if after:
            self._known = self._read(part_of(path), after)
            self._check = self._known[-1]
            self._noted = after
        elif begun and self.path.exists():
            self._check = next(iter(self._read(part_of(path), None)), None)  # none: it ended before its first chunk

    def follow(self, pieces: Iterable[Video]) -> Iterator[Video]:
        """The same pieces; refused as soon as they are not those that were encoded before."""
        for piece in pieces:
            for frame in piece.frames[:, ::ROW_STEP].contiguous().numpy():
                self._digest = hashlib.blake2b(self._digest + frame.tobytes(), digest_size=DIGEST_BYTES).digest()
                self._taken += 1
                if self._taken > self._noted:
                    self._ahead.append(self._digest)
                if self._check is not None and self._check == (self._taken, self._digest.hex()):
                    self._check = None
                if self._check is not None and self._taken >= self._check[0]:
                    part = self.path.with_suffix("")
                    raise UsageError(
                        f"{part} was begun with another video: the first {self._taken:,} frames are not those it was "
                        "made from; give that video, or begin anew",
                        about=("resume", "force"),
                    )
            yield piece

    def note(self, frames: int) -> None:
        """So many more frames are in a chunk that is about to be written."""
        if self._file is None:
            lines = [json.dumps(self.settings), *(f"{count} {digest}" for count, digest in self._known)]
            write_atomic(self.path, "".join(f"{line}\n" for line in lines).encode())
            self._file = open_part(self.path, "ab")
        digests = [self._ahead.popleft() for _ in range(frames)]
        self._noted += frames
        with writing(self.path):
            self._file.write(f"{self._noted} {digests[-1].hex()}\n".encode())
            self._file.flush()

    def close(self) -> None:
        """Stop; the file goes where there is no part any more that it tells of."""
        if self._file is not None:
            with suppress(OSError):  # a full disk: the line of a chunk that was not written either
                self._file.close()
        if not self.path.with_suffix("").exists():
            self.path.unlink(missing_ok=True)

    def _read(self, part: Path, after: int | None) -> list[tuple[int, str]]:
        """What is known of the first `after` frames, or of all; refuses other settings."""
        try:
            first, *lines = self.path.read_text(encoding="ascii").splitlines()
            before = json.loads(first)
            rows = [line.split() for line in lines]
            found = [(int(row[0]), row[1]) for row in rows if len(row) == 2 and len(row[1]) == 2 * DIGEST_BYTES]
        except (OSError, ValueError, RecursionError):
            before, found = None, []
        found = [row for row in found if after is None or row[0] <= after]
        if not isinstance(before, dict) or (after and not found):
            raise UsageError(
                f"{part} has no record of the video it was begun with ({self.path.name}); begin anew", about="force"
            )
        other = [f"{name} was {_told(before.get(name))} and is {_told(now)}" for name, now in self.settings.items()
                 if before.get(name) != now]  # fmt: skip
        if other:
            raise UsageError(
                f"{part} was begun with other settings: {'; '.join(other)}; give the same, or begin anew",
                about=("resume", "force"),
            )
        return found


def _told(setting: object) -> object:
    """A budget as one would name it: `keep 0.3, bucket_seconds 2`."""
    return ", ".join(f"{k} {v}" for k, v in setting.items()) if isinstance(setting, dict) else setting


def settings_of(encoder: VideoEncoder) -> dict[str, object]:
    """All that decides the tokens besides the video, as JSON gives it back."""
    parts, budget = encoder.parts, {k: v for k, v in asdict(encoder.budget).items() if v is not None and v is not False}
    found = {
        **asdict(encoder.config),
        "budget": budget or "the model's own tau",
        "backbone": parts.spec.name,
        "weights": parts.spec.weight_hash,
        "device": parts.device.type,
        "dtype": str(parts.dtype),
    }
    again: dict[str, object] = json.loads(json.dumps(found))
    return again
