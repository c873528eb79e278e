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

from inlay.backbones import State
from inlay.codec.calls import join_states, shape_of, split_state
from inlay.codec.check import check_tokens
from inlay.codec.config import mode_of
from inlay.codec.parts import Parts
from inlay.codec.transfer import Transfer, upload
from inlay.container.tokens import Tokens
from inlay.errors import UsageError
from inlay.fill import Filler, hold
from inlay.types import VideoInfo
from inlay.video.frames import Video, to_frames


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
        z_BCTHW, keep_BTHW, lead = self.prepare(tokens)
        return self.filler.fill(z_BCTHW, keep_BTHW, tokens.recipe.tau, self.name)[:, :, lead:]

    def prepare(self, tokens: Tokens) -> tuple[Tensor, Tensor, int]:
        """What the fill is given: latents, mask, and how many slots of its answer lead the chunk and are dropped."""
        self.filler.check(tokens.recipe, self.name)
        (span,) = tokens.spans
        if span.key:
            self.reset()
        elif self._held_BCHW is None:
            raise UsageError("this chunk goes on from one that was not decoded; begin at a key chunk")
        z_BCTHW, keep_BTHW = scattered(tokens, self.filler.device, self.filler.dtype)
        past_BCHW = self._held_BCHW
        self._held_BCHW = hold(z_BCTHW, keep_BTHW, past_BCHW)[:, :, -1]
        if past_BCHW is None:
            return z_BCTHW, keep_BTHW, 0
        if mode_of(tokens.recipe) == "dual-cache":
            return *_filled_first(z_BCTHW, keep_BTHW, past_BCHW), 0
        return *_led_by(z_BCTHW, keep_BTHW, past_BCHW), 1


def scattered(tokens: Tokens, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Kept cells at their places on the device, zeros elsewhere, and the mask."""
    if device.type != "cuda":
        return tokens.dense().to(device, dtype), tokens.mask[None].to(device)
    mask = tokens.mask.flatten()
    where = upload(mask.nonzero()[:, 0].pin_memory(), device)  # found on the CPU, so that the device is not waited for
    values = upload(tokens.values.pin_memory(), device).to(dtype)
    z_LC = torch.zeros(len(mask), tokens.channels, device=device, dtype=dtype).index_copy_(0, where, values)
    keep_L = torch.zeros(len(mask), device=device, dtype=torch.bool).index_fill_(0, where, True)
    return z_LC.view(*tokens.mask.shape, -1).permute(3, 0, 1, 2)[None], keep_L.view(tokens.mask.shape)[None]


def _filled_first(z_BCTHW: Tensor, keep_BTHW: Tensor, past_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Appendix D: the holes of the first slot take the fill cache and count as kept from then on."""
    first = torch.where(keep_BTHW[:, :1, None].transpose(1, 2), z_BCTHW[:, :, :1], past_BCHW[:, :, None])
    z_BCTHW = torch.cat([first, z_BCTHW[:, :, 1:]], dim=2)
    return z_BCTHW, torch.cat([torch.ones_like(keep_BTHW[:, :1]), keep_BTHW[:, 1:]], dim=1)


def _led_by(z_BCTHW: Tensor, keep_BTHW: Tensor, past_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """The past stands before the chunk as a slot kept whole, which any fill understands, and is dropped again."""
    z_BCTHW = torch.cat([past_BCHW[:, :, None], z_BCTHW], dim=2)
    return z_BCTHW, torch.cat([torch.ones_like(keep_BTHW[:, :1]), keep_BTHW], dim=1)


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
        self.parts = parts
        self._fills = [LatentDecoder(parts.filler, fill=fill) for _ in range(streams)]
        self._states: list[State] = [None] * streams

    def reset(self) -> None:
        """Forget everything: the next chunks must be key chunks."""
        for fill in self._fills:
            fill.reset()
        self._states = [None] * len(self._fills)

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
        return self._launch(chunks).videos()

    @torch.inference_mode()
    def _launch(self, chunks: Sequence[Tokens]) -> Rendering:
        given = [self._prepare(number, tokens) for number, tokens in enumerate(chunks)]
        groups: dict[object, list[int]] = {}
        for number, (tokens, (z_BCTHW, _, lead)) in enumerate(zip(chunks, given, strict=True)):
            kind = z_BCTHW.shape, lead, tokens.recipe.tau, mode_of(tokens.recipe), shape_of(self._states[number])
            groups.setdefault(kind, []).append(number)
        rendering = Rendering(chunks)
        for group in groups.values():
            recipe = chunks[group[0]].recipe
            z_BCTHW = self._fill([given[number] for number in group], recipe.tau)
            rendering.add(group, self._decode(z_BCTHW, group, mode_of(recipe)))
        return rendering

    def _prepare(self, number: int, tokens: Tokens) -> tuple[Tensor, Tensor, int]:
        self.parts.check(tokens.recipe, tokens.channels)
        check_tokens(tokens, self.parts.spec)
        if tokens.spans[0].key:
            self._states[number] = None
        return self._fills[number].prepare(tokens)

    def _fill(self, given: list[tuple[Tensor, Tensor, int]], tau: float) -> Tensor:
        z_BCTHW, keep_BTHW = (torch.cat([row[i] for row in given]) for i in (0, 1))  # type: ignore[misc]
        return self.parts.fill_cells(z_BCTHW, keep_BTHW, tau, self._fills[0].name)[:, :, given[0][2] :]

    def _decode(self, z_BCTHW: Tensor, group: list[int], mode: str) -> Tensor:
        if mode != "stateful":
            return self.parts.decode_latents(z_BCTHW)
        x_BCTHW, after = self.parts.decode_next(z_BCTHW, join_states([self._states[n] for n in group]))
        for number, own in zip(group, split_state(after, len(group)), strict=True):
            self._states[number] = own
        return x_BCTHW


class Rendering:
    """Frames of a chunk of each stream on their way from the device."""

    def __init__(self, chunks: Sequence[Tokens]) -> None:
        self.chunks = chunks
        self._groups: list[tuple[list[int], Transfer]] = []

    def add(self, group: list[int], x_BCTHW: Tensor) -> None:
        """Decoded pixels of the chunks of one shape, cut to the true size and length."""
        info = self.chunks[group[0]].info
        x_BCTHW = x_BCTHW[..., : info.height, : info.width]
        self._groups.append((group, Transfer(to_frames(x_BCTHW))))

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


def cropped(x_CTHW: Tensor, info: VideoInfo, seconds: Tensor | None = None) -> Video:
    """Decoded pixels cut to the true size and length."""
    x_CTHW = x_CTHW[:, : info.frames, : info.height, : info.width]
    return Video.from_pixels(x_CTHW, fps=info.fps, seconds=seconds)
