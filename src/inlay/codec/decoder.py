# SPDX-License-Identifier: Apache-2.0
"""`Decoder`: tokens to frames, chunk by chunk; `LatentDecoder`: tokens to dense latents, which needs no backbone.

What a chunk must know of the one before is kept in between. Legend: B batch (one for each stream), C channels, T slots
or frames, H W grid or pixels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from inlay.codec.calls import Row, join_rows
from inlay.codec.check import check_tokens
from inlay.codec.config import mode_of
from inlay.codec.parts import Parts
from inlay.codec.placing import check_chunk, goes_on, place
from inlay.codec.transfer import Transfer
from inlay.container.tokens import Tokens
from inlay.errors import UsageError, check_kind, check_number
from inlay.fill import Filler
from inlay.video.frames import Video, resized


class LatentDecoder:
    """Fills chunks that may go on from one another. They must come in order, from a key chunk on."""

    def __init__(self, filler: Filler, *, fill: str | None = None) -> None:
        self.filler, self.name = filler, fill or filler.default
        filler.find(self.name)
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next chunk must be a key chunk."""
        self._held_BCHW: Tensor | None = None  # the latent kept last at each place: the fill cache

    @torch.inference_mode()
    def push(self, tokens: Tokens) -> Tensor:
        """[1, C, T, H, W] dense latents of one chunk, filled from the chunks before as well."""
        check_chunk(tokens)
        self.filler.check(tokens.recipe, self.name)
        past_BCHW = self._held_BCHW if goes_on(tokens, decoded=self._held_BCHW is not None) else None
        z_BCTHW, keep_BTHW, self._held_BCHW, lead = place(self.filler, [tokens], past_BCHW)
        return self.filler.fill(z_BCTHW, keep_BTHW, tokens.recipe.tau, self.name)[:, :, lead:]


class Decoder:
    """Chunks must come in order, from a key chunk on. Every chunk gives its own frames at once: nothing to flush.

    decoder = Decoder(tokenizer)
    for tokens in reader:
        show(decoder.push(tokens))

    Args:
        parts: a `Tokenizer`, or the parts of one.
        fill: how dropped cells come back, in place of the default.
        streams: how many videos go in step; `push_all` takes a chunk of each.
    """

    def __init__(self, parts: Parts, *, fill: str | None = None, streams: int = 1) -> None:
        check_kind(parts, Parts, "a decoder takes a Tokenizer")
        check_number("streams", streams, "a number of videos, 1 or more", lambda n: n >= 1, whole=True)
        self.parts, self.fill = parts, fill or parts.filler.default
        parts.filler.find(self.fill)
        self._rows: list[Row | None] = [None] * streams  # state of the network, and what is held for the fill

    def __repr__(self) -> str:
        return f"Decoder({self.parts.spec.name}, fill {self.fill}, streams {len(self._rows)})"

    def reset(self) -> None:
        """Forget everything: the next chunks must be key chunks."""
        self._rows = [None] * len(self._rows)

    @property
    def latency_frames(self) -> int:
        """A chunk's frames come with the chunk."""
        return 0

    def push(self, tokens: Tokens) -> Video:
        """The frames of one chunk."""
        return self.push_all([tokens])[0]

    def flush(self) -> list[Video]:
        """Nothing is ever held back; ends the video."""
        self.reset()
        return []

    def decode(self, chunks: Iterable[Tokens]) -> Iterator[Video]:
        """The frames of each chunk of one video."""
        return (videos[0] for videos in self.decode_all([tokens] for tokens in chunks))

    def decode_all(self, rows: Iterable[Sequence[Tokens]]) -> Iterator[list[Video]]:
        """The frames of a chunk of each stream at a time; on a GPU the next ones are at work meanwhile."""
        waiting: deque[Rendering] = deque()
        for chunks in rows:
            waiting.append(self._launch(chunks))
            if len(waiting) > self.parts.ahead:
                yield waiting.popleft().videos()
        while waiting:
            yield waiting.popleft().videos()

    def push_all(self, chunks: Sequence[Tokens]) -> list[Video]:
        """The frames of a chunk of each stream; chunks of one shape go through the networks together."""
        if len(chunks) > (streams := len(self._rows)):
            raise UsageError(f"of {streams} streams push_all takes at most {streams} chunks; got {len(chunks)}")
        return self._launch(chunks).videos()

    @torch.inference_mode()
    def _launch(self, chunks: Sequence[Tokens]) -> Rendering:
        groups: dict[object, list[int]] = {}
        for number, tokens in enumerate(chunks):
            groups.setdefault(self._kind(number, tokens), []).append(number)
        rendering = Rendering(chunks)
        for group in groups.values():
            rendering.add(group, self._decode([chunks[number] for number in group], group))
        return rendering

    def _kind(self, number: int, tokens: Tokens) -> object:
        """What chunks that go through the networks together have in common."""
        check_chunk(tokens)
        self.parts.check(tokens.recipe, tokens.channels)
        check_tokens(tokens, self.parts.spec)
        self.parts.filler.check(tokens.recipe, self.fill)
        row = self._rows[number]
        if not goes_on(tokens, decoded=row is not None):
            row = self._rows[number] = None
        size = tokens.info.height, tokens.info.width, tokens.recipe.scale, tokens.recipe.key_slots
        state = None if row is None else row.kind if row.joins else number
        kept = tokens.mask.shape, tokens.values.dtype
        return kept, size, tokens.recipe.tau, mode_of(tokens.recipe), row is None, state

    def _decode(self, chunks: list[Tokens], group: list[int]) -> Tensor:
        """[B, T, H, W, 3] uint8 of chunks of one kind, cut to the true size."""
        first, before = chunks[0], join_rows([self._rows[number] for number in group])
        state, seen = before or (None, None)
        past_BCHW = None if seen is None else seen[0]
        z_BCTHW, keep_BTHW, held_BCHW, lead = place(self.parts.filler, chunks, past_BCHW)
        if not all(bool(tokens.mask.all()) for tokens in chunks):  # asked where it costs nothing: the CPU has the masks
            z_BCTHW = self.parts.fill_cells(z_BCTHW, keep_BTHW, first.recipe.tau, self.fill)
        z_BCTHW = z_BCTHW[:, :, lead:]
        carries = mode_of(first.recipe) == "stateful"
        true = first.info.height, first.info.width
        frames, after = self.parts.decode_frames(z_BCTHW, carries, *first.recipe.coded(*true), state)
        for index, number in enumerate(group):
            self._rows[number] = Row(joint=(after, [held_BCHW]), index=index, count=len(group))
        return frames if first.recipe.scale == "1" else torch.stack([resized(video, *true) for video in frames])


class Rendering:
    """Frames of a chunk of each stream on their way from the device."""

    def __init__(self, chunks: Sequence[Tokens]) -> None:
        self.chunks = chunks
        self._groups: list[tuple[list[int], Transfer]] = []

    def add(self, group: list[int], frames_BTHWC: Tensor) -> None:
        """Decoded frames of the chunks of one kind."""
        self._groups.append((group, Transfer(frames_BTHWC)))

    def videos(self) -> list[Video]:
        """In the order of the chunks; waits for the transfers."""
        found: dict[int, Video] = {}
        for group, transfer in self._groups:
            (frames_BTHWC,) = transfer.arrived()
            for number, frames_THWC in zip(group, frames_BTHWC, strict=True):
                chunk = self.chunks[number]
                frames = frames_THWC[: chunk.info.frames]
                found[number] = Video(frames=frames, fps=chunk.info.fps, seconds=chunk.seconds)
        return [found[number] for number in range(len(self.chunks))]
