# SPDX-License-Identifier: Apache-2.0
"""Open a path, a pipe, an address or a file object as a PyAV container, and name it in errors."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from inlay.errors import MissingError, UsageError, VideoError
from inlay.files import kind_of, too_long, using_scratch
from inlay.video.promise import needs_seeking, promised_bytes

if TYPE_CHECKING:
    from types import ModuleType

    from av.container import InputContainer

Source = str | os.PathLike[str] | BinaryIO

FORMATS = {  # demuxer -> what people call its files: those that hold their pictures themselves
    "mov,mp4,m4a,3gp,3g2,mj2": "mp4, m4v, mov, 3gp",
    "matroska,webm": "mkv, webm",
    "avi": "avi",
    "mpegts": "ts, mts, m2ts",
    "mpeg": "mpg, mpeg, vob",
    "asf": "wmv, asf",
    "flv": "flv",
    "ogg": "ogv, ogg",
    "mxf": "mxf",
    "nut": "nut",
    "ivf": "ivf",
    "yuv4mpegpipe": "y4m",
    "mpegvideo": "m1v, m2v",
    "h264": "h264",
    "hevc": "hevc",
    "obu": "obu",
    "mjpeg": "mjpeg",
    "gif": "gif",
    "png_pipe": "png",
    "jpeg_pipe": "jpg",
    "webp_pipe": "webp",
}
LIVE = ("hls", "rtsp", "rtp", "sdp", "live_flv", "mpjpeg")  # what servers and cameras speak besides
ADDRESS = re.compile(r"(https?|rtsps?|rtmps?|rtp|udp|tcp|srt)://", re.IGNORECASE)
NETWORK = "http,https,httpproxy,tls,tcp,udp,rtp,rtsp,rtmp,rtmps,srt,crypto"  # an address never leads to a local file
PATIENCE_SECONDS = 20.0  # without a byte from an address

SPOOL_BYTES = 1 << 20  # at a time, of a pipe that is put on disk
HEAD_BYTES = 1 << 16  # enough to see the first boxes of an mp4, whose order tells whether a pipe can be decoded


def pyav() -> ModuleType:
    """PyAV, imported when the first file is opened: the rest of the package works without it."""
    try:
        import av
    except ImportError as error:
        raise MissingError("PyAV is not installed, and video files need it; run: pip install av") from error
    return av


class Tap:
    """What PyAV reads a pipe through: remembers the head, counts the bytes, never closes the owner's file."""

    def __init__(self, stream: Any, head: bytes = b"") -> None:
        self.stream = stream
        self.head = head
        self.count = 0
        self.ended = False

    def read(self, size: int = -1) -> bytes:
        data = self.head[self.count :] if size < 0 else self.head[self.count : self.count + size]
        if size < 0 or not data:
            data += self.stream.read(size)
        self.count += len(data)
        self.ended = self.ended or (not data and size != 0)
        return data


class SeekableTap:
    """The same for a file object that can seek; the place it stood at counts as the beginning."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.start = stream.tell()
        self.size = stream.seek(0, os.SEEK_END) - self.start
        self.seek(0)

    def read(self, size: int = -1) -> bytes:
        return self.stream.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self.stream.seek(offset + (self.start if whence == os.SEEK_SET else 0), whence) - self.start

    def tell(self) -> int:
        return self.stream.tell() - self.start


class Input:
    """An input that is there, is not empty, and can be opened as a container: twice, if it can seek."""

    def __init__(self, source: Source) -> None:
        self._closing = ExitStack()
        self.tap: Tap | SeekableTap | None = None
        self._promised: int | None = None
        self._have = 0
        try:
            self._take(source)
        except BaseException:
            self.close()
            raise

    def _take(self, source: Source) -> None:
        self.address = _plain_address(source) if isinstance(source, str) and is_address(source) else None
        if self.address is not None:
            self.name = self.address
        elif isinstance(source, str | os.PathLike) and os.fspath(source) != "-":
            self.name = os.fspath(source)
            self._take_path(Path(source))
        elif isinstance(source, str | os.PathLike):
            self.name = "standard input"
            if sys.stdin.isatty():
                raise UsageError("standard input is a terminal; pipe a video into it, or name a file")
            self._take_stream(sys.stdin.buffer)
        else:
            if not hasattr(source, "read"):
                raise UsageError(f"a video source is a path, '-' or a binary file object; got {type(source).__name__}")
            self.name = str(getattr(source, "name", "the stream"))
            self._take_stream(source)

    @property
    def seekable(self) -> bool:
        return self.address is None and not isinstance(self.tap, Tap)

    def container(self) -> InputContainer:
        """A container at the beginning of the input."""
        av = pyav()
        try:
            if self.address is not None:
                allowed = {"format_whitelist": ",".join([*FORMATS, *LIVE]), "protocol_whitelist": NETWORK}
                return av.open(self.address, "r", options=allowed, timeout=PATIENCE_SECONDS)
            if isinstance(self.tap, SeekableTap):
                self.tap.seek(0)
            # the bytes alone: no name that FFmpeg could take for a pattern, and no way from here to other files
            return av.open(self.tap, "r", options={"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "none"})
        except (av.FFmpegError, OSError, ValueError, UnicodeError) as error:
            raise VideoError(self._why_not(error)) from error

    def shortfall(self) -> str | None:
        """How much of the input is missing by its own account, or None. For a pipe: known once it has ended."""
        have = self._have
        if isinstance(self.tap, Tap):
            if not self.tap.ended:
                return None
            have = self.tap.count
        if self._promised is None or self._promised <= have:
            return None
        return f"its header promises {self._promised:,} bytes or more, {have:,} are there"

    def close(self) -> None:
        self._closing.close()

    def _take_path(self, path: Path) -> None:
        try:
            if too_long(path):
                raise VideoError(f"{self.name}: the name is too long for a file; give a shorter one")
            if not path.exists():
                raise VideoError(f"{self.name}: there is no such file")
            if (kind := kind_of(path)) is not None:  # opening a pipe could wait for ever
                raise VideoError(f"{self.name}: is {kind}, not a video; give a file, or - for standard input")
            file = self._closing.enter_context(path.open("rb"))
        except (OSError, ValueError) as error:
            raise VideoError(f"{self.name}: cannot be opened: {reason(error)}") from error
        self._take_stream(file)

    def _take_stream(self, stream: BinaryIO) -> None:
        try:
            if stream.seekable():
                self.tap = SeekableTap(stream)
                self._measure(self.tap, self.tap.size)
                return
            head = _read_fully(stream, HEAD_BYTES)
            if needs_seeking(head):
                self.tap = self._spool(head, stream)
                self._measure(self.tap, self.tap.size)
            else:
                self.tap = Tap(stream, head)
                self._measure(io.BytesIO(head), len(head))
        except OSError as error:
            raise VideoError(f"{self.name}: cannot be read: {reason(error)}") from error

    def _measure(self, file: Any, size: int) -> None:
        """Once and at the start: later the place in the file is the decoder's."""
        if size == 0:
            raise VideoError(f"{self.name}: is empty (0 bytes); give a video")

        def peek(offset: int, count: int) -> bytes:
            file.seek(offset)
            return file.read(count)

        self._promised, self._have = promised_bytes(peek), size

    def _spool(self, head: bytes, stream: BinaryIO) -> SeekableTap:
        # an mp4 whose table of contents comes last cannot be decoded from a pipe; disk keeps the memory bounded
        with using_scratch():
            spool = tempfile.TemporaryFile(prefix="inlay-")  # noqa: SIM115
        self._closing.callback(_close, spool)
        data = head
        while data:
            with using_scratch():
                spool.write(data)
                spool.flush()
            data = stream.read(SPOOL_BYTES)
        spool.seek(0)
        return SeekableTap(spool)

    def _why_not(self, error: Exception) -> str:
        missing = self.shortfall()
        if missing is not None:
            return f"{self.name}: cut short before its table of contents: {missing}; fetch it again"
        av = pyav()
        if isinstance(error, av.error.InvalidDataError | EOFError | ValueError):  # also: a format that is not allowed
            kinds = ", ".join(FORMATS.values())
            return (
                f"{self.name}: not a video of a kind that is read ({kinds}); convert it to mp4; lists are not followed"
            )
        return f"{self.name}: cannot be opened: {reason(error)}"


def is_address(source: str) -> bool:
    """A camera or a server rather than a file: `rtsp://…`, `https://…`."""
    return ADDRESS.match(source) is not None


def _plain_address(source: str) -> str:
    """With its scheme in small letters, as FFmpeg knows it."""
    scheme, mark, rest = source.partition("://")
    return scheme.lower() + mark + rest


def _close(spool: Any) -> None:
    with suppress(OSError):  # a full disk: nobody asks for what still waits to be written
        spool.close()


def _read_fully(stream: Any, size: int) -> bytes:
    parts = io.BytesIO()
    while parts.tell() < size and (data := stream.read(size - parts.tell())):
        parts.write(data)
    return parts.getvalue()


def reason(error: Exception) -> str:
    """What an error of PyAV or the system says, in one line."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
