# SPDX-License-Identifier: Apache-2.0
"""Processes beside a GPU worker that decode videos and pack tokens, so that it need only feed the network.

A process for each open video decodes it and leaves the frames in memory that both see; threads of the worker copy them
to pinned memory, from where the GPU fetches them. Any of the others packs the tokens of a chunk. What they give is what
the worker itself would have given, byte for byte. One that dies takes the worker with it, whose notes say at which
videos it was.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
import queue
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inlay.container.chunk import pack_chunk
from inlay.container.layout import ChunkHead
from inlay.container.tokens import Tokens
from inlay.errors import InlayError
from inlay.scale.config import TokenizeConfig
from inlay.scale.feed import PIECE_BYTES, Ended, Found, Opened, OpenVideo, decode_item
from inlay.scale.sources import SourceItem
from inlay.scale.store import check_scratch
from inlay.scale.workers import exit_when, portable, script_hidden, warm_up
from inlay.types import Recipe, Span, VideoInfo
from inlay.video import open_video
from inlay.video.frames import Video

PLACES = 2  # pieces in the memory that a decoder and its worker share: one is written while one is read


class HelperDied(BaseException):
    """A process that decoded or packed is gone; no video is to blame for sure, so this ends the worker."""


class Helpers:
    """Decoders for as many videos as are open at once, and packers.

    Args:
        videos: how many may be open at once.
        packers: processes that pack tokens.
        pins: frames come in pinned memory.
        opens: what opens videos, by a name that another process can import.
    """

    def __init__(self, *, videos: int, packers: int, pins: bool, opens: OpenVideo = open_video) -> None:
        warm_up("cpu", 1)
        context: Any = multiprocessing.get_context("forkserver")
        self._pins = pins
        self._free: queue.SimpleQueue[DecoderProcess] = queue.SimpleQueue()
        with script_hidden():
            self._decoders = [DecoderProcess(context, opens) for _ in range(videos)]
            self._packers = ProcessPoolExecutor(packers, mp_context=context, initializer=begin)
            for future in [self._packers.submit(int) for _ in range(packers)]:  # started now, not with the first chunks
                future.result()
        for decoder in self._decoders:
            self._free.put(decoder)

    @property
    def pids(self) -> list[int]:
        """Of the processes that decode."""
        return [decoder.pid for decoder in self._decoders]

    def close(self) -> None:
        """End them all."""
        self._packers.shutdown(cancel_futures=True)
        for decoder in self._decoders:
            decoder.end()

    def decode(self, item: SourceItem, config: TokenizeConfig) -> Generator[Found]:
        """`decode_item` in another process."""
        decoder = self._free.get()
        try:
            yield from decoder.decode(item, config, pins=self._pins)
        finally:
            self._free.put(decoder)

    def pack(self, tokens: Tokens, number: int, recipe: Recipe) -> Future[tuple[ChunkHead, bytes]]:
        """`pack_chunk` in another process."""
        seconds = None if tokens.seconds is None else tokens.seconds.numpy()
        arrays = tokens.values.numpy(), tokens.mask.numpy(), seconds
        try:
            return self._packers.submit(pack_arrays, *arrays, tokens.info, tokens.spans, number, recipe)
        except BrokenProcessPool as error:
            raise HelperDied("a process that packed tokens died") from error


# --- packing ----------------------------------------------------------------------------------------------------------


def pack_arrays(
    values: NDArray[np.float32],
    mask_THW: NDArray[np.bool_],
    seconds: NDArray[np.float64] | None,
    info: VideoInfo,
    spans: tuple[Span, ...],
    number: int,
    recipe: Recipe,
) -> tuple[ChunkHead, bytes]:
    """`pack_chunk` of tokens that came as arrays: tensors travel by way of files, which takes longer."""
    times = None if seconds is None else torch.from_numpy(seconds)
    tensors = torch.from_numpy(values), torch.from_numpy(mask_THW)
    tokens = Tokens(values=tensors[0], mask=tensors[1], info=info, recipe=recipe, spans=spans, seconds=times)
    return pack_chunk(tokens, number, recipe)


def begin() -> None:
    """What every helper does first: one thread, and no life beyond the worker's."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a helper is a worker's child"
    exit_when(lambda: wait([parent.sentinel]))
    torch.set_num_threads(1)


# --- decoding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PieceAt:
    """A piece that lies in shared memory, or comes along where it is too large for that."""

    place: int
    shape: tuple[int, ...]
    fps: Fraction
    seconds: NDArray[np.float64] | None
    frames_THWC: NDArray[np.uint8] | None


class DecoderProcess:
    """A process that decodes one video after the other."""

    def __init__(self, context: Any, opens: OpenVideo) -> None:
        memory = context.RawArray(ctypes.c_ubyte, PLACES * PIECE_BYTES)
        self._places = places_in(memory)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=decode_videos, args=(theirs, memory, opens), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def end(self) -> None:
        self._process.terminate()
        self._process.join()
        self._pipe.close()

    def decode(self, item: SourceItem, config: TokenizeConfig, *, pins: bool) -> Generator[Found]:
        """What the process finds. Every piece is answered: go on, or, after an early end of this, stop."""
        self._send((item, config))
        ended = False
        try:
            while not ended:
                found = self._receive()
                ended = isinstance(found, Ended | BaseException)
                if isinstance(found, BaseException):
                    raise found
                if isinstance(found, PieceAt):
                    video = self._copied(found, pins=pins)
                    self._send(True)
                    yield video
                else:
                    yield found
        finally:
            while not ended:
                found = self._receive()
                ended = isinstance(found, Ended | BaseException)
                if isinstance(found, PieceAt):
                    self._send(False)

    def _send(self, message: object) -> None:
        try:
            self._pipe.send(message)
        except OSError as error:
            raise HelperDied("a process that decoded died") from error

    def _receive(self) -> Opened | PieceAt | Ended | BaseException:
        try:
            found: Opened | PieceAt | Ended | BaseException = self._pipe.recv()
            return found
        except (EOFError, OSError) as error:
            raise HelperDied("a process that decoded died") from error

    def _copied(self, piece: PieceAt, *, pins: bool) -> Video:
        frames_THWC = torch.empty(piece.shape, dtype=torch.uint8, pin_memory=pins)
        given = piece.frames_THWC
        if given is None:
            given = self._places[piece.place, : frames_THWC.numel()].reshape(piece.shape)
        np.copyto(frames_THWC.numpy(), given)  # other threads of Python go on meanwhile
        seconds = None if piece.seconds is None else torch.from_numpy(piece.seconds)
        return Video(frames=frames_THWC, fps=piece.fps, seconds=seconds)


def places_in(memory: Any) -> NDArray[np.uint8]:
    return np.frombuffer(memory, dtype=np.uint8).reshape(PLACES, PIECE_BYTES)


def decode_videos(pipe: Connection, memory: Any, opens: OpenVideo) -> None:
    """The life of a decoder."""
    begin()
    places = places_in(memory)
    with suppress(EOFError, ConnectionError):
        while True:
            item, config = pipe.recv()
            lent = Lent(pipe, places)
            last: Ended | BaseException = Ended(damage=None)
            try:
                for found in decode_item(item, config, opens):
                    if isinstance(found, Ended):
                        last = found
                    elif isinstance(found, Opened):
                        pipe.send(found)
                    elif not lent.send(found):
                        break
            except Exception as error:
                last = sendable(error)
            lent.wait(0)
            pipe.send(last)


class Lent:
    """Pieces that were sent and not answered yet."""

    def __init__(self, pipe: Connection, places: NDArray[np.uint8]) -> None:
        self._pipe, self._places = pipe, places
        self._count = self._answered = 0
        self._wanted = True

    def send(self, piece: Video) -> bool:
        """Whether more are wanted; where they are not, this one was not sent."""
        self.wait(PLACES - 1)
        if not self._wanted:
            return False
        frames, place = piece.frames.numpy(), self._count % PLACES
        fits = frames.size <= PIECE_BYTES
        if fits:
            self._places[place, : frames.size] = frames.reshape(-1)
        seconds = None if piece.seconds is None else piece.seconds.numpy()
        beside = None if fits else frames
        self._count += 1
        self._pipe.send(PieceAt(place=place, shape=frames.shape, fps=piece.fps, seconds=seconds, frames_THWC=beside))
        return True

    def wait(self, most: int) -> None:
        """Until no more than `most` are unanswered."""
        while self._count - self._answered > most:
            self._wanted = self._pipe.recv() and self._wanted
            self._answered += 1


def sendable(error: Exception) -> Exception:
    """The error, or one that says the same, for the way to another process; a full disk is told from a bad video."""
    for cause in (error, error.__cause__):
        if isinstance(cause, OSError):
            try:
                check_scratch(cause)
            except InlayError as full:
                return full
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return portable(error)
    return error if isinstance(again, type(error)) else portable(error)
