# SPDX-License-Identifier: Apache-2.0
"""Decode the frames of an `Input`, one by one; damage is an error, or with keep_going a note."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from inlay.errors import VideoError
from inlay.video.pixels import check_pixels
from inlay.video.source import Input, pyav

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

log = logging.getLogger("inlay.video")


class Decoder:
    """Walks once over the frames of an input."""

    def __init__(self, source: Input, *, keep_going: bool) -> None:
        self.input = source
        self.keep_going = keep_going
        self.count = 0
        self._packet_count = self._failed = self._concealed = 0
        self._interlaced = self._ended = False
        self._wrong: str | None = None
        self.container = source.container()
        try:
            self.stream = video_stream(self.container, source.name)
        except VideoError:
            self.container.close()
            raise
        # threads that each decode a frame lose good ones at the end of a file that was cut short
        self.stream.thread_type = "SLICE" if source.shortfall() else "AUTO"

    def close(self) -> None:
        self.container.close()

    @property
    def damage(self) -> str | None:
        """What was wrong with the input so far, and how much could be read nonetheless."""
        lost = self._failed
        if self._ended and not self._interlaced:  # decoders drop frames in silence; of fields two make a frame
            lost = max(lost, self._packet_count - self.count)
        total = max(self._packet_count, self.count)
        found = [self._wrong] if self._wrong is not None else []
        found += [f"{lost:,} of {total:,} frames could not be decoded"] if lost else []
        found += [f"{self._concealed:,} of {total:,} frames are damaged"] if self._concealed else []
        return f"{self.input.name}: {'; '.join(found)}; {self.count} frames could be read" if found else None

    def frames(self) -> Iterator[VideoFrame]:
        for packet in self._packets():
            yield from self._decode(packet)
        self._ended = True
        if missing := self.input.shortfall():
            self._note(f"cut short: {missing}")
        if self.count == 0:
            raise VideoError(f"{self.input.name}: no frame could be decoded; the file is damaged or holds no picture")
        if self.damage is not None:
            log.warning(self.damage)

    def _packets(self) -> Iterator[Packet | None]:
        """All packets; the last one, empty or None, makes the decoder give the frames it still holds."""
        packets = self.container.demux(self.stream)
        while True:
            try:
                packet = next(packets, None)
            except (pyav().FFmpegError, OSError) as error:
                self._note(f"cannot be read on: {error.strerror or error}")
                yield None
                return
            if packet is None:
                return
            self._packet_count += bool(packet.size and not packet.is_discard)
            yield packet

    def _decode(self, packet: Packet | None) -> list[VideoFrame]:
        av = pyav()
        check_pixels(self.stream.width, self.stream.height, self.input.name)
        if packet is not None and packet.is_corrupt:
            self._note("holds a damaged packet")
        try:
            frames = self.stream.decode(None) if packet is None else packet.decode()
        except (av.FFmpegError, OSError):
            self._failed += 1
            self._note(None)
            return []
        self.count += len(frames)
        self._concealed += sum(frame.is_corrupt for frame in frames)
        self._interlaced = self._interlaced or any(frame.interlaced_frame for frame in frames)
        return frames

    def _note(self, wrong: str | None) -> None:
        """Damage: an error, or with keep_going something to remember."""
        missing = self.input.shortfall()  # the cause, where a decoder only sees the effect
        self._wrong = self._wrong or (f"cut short: {missing}" if missing else wrong)
        if self.keep_going:
            return
        self.keep_going = True
        if self.input.seekable and not self._ended:  # a live stream may have no end
            for packet in self._packets():  # so that all of the damage is told
                self._decode(packet)
            self._ended = True
        if self.count == 0:
            raise VideoError(f"{self.damage}; fetch the file again")
        raise VideoError(f"{self.damage}; fetch the file again, or use what could be read", about="keep_going")


def video_stream(container: InputContainer, name: str) -> VideoStream:
    """The default video stream, or the first; the cover picture of a song is none."""
    kind = pyav().stream.Disposition
    streams = [s for s in container.streams.video if not s.disposition & kind.attached_pic]
    known = [s for s in streams if s.codec_context is not None]
    if known:
        return max(known, key=lambda s: bool(s.disposition & kind.default))
    if streams:
        raise VideoError(f"{name}: holds video that this build of PyAV has no decoder for; convert it to mp4")
    found = " and ".join(sorted({s.type for s in container.streams if s.type != "video"})) or "nothing"
    raise VideoError(f"{name}: holds no video, only {found}; name a file with moving pictures")
