# SPDX-License-Identifier: Apache-2.0
"""Tokens in, chunk by chunk, frames out: what a chunk must know of the one before is kept in between."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inlay.codec.config import mode_of
from inlay.container.tokens import Tokens
from inlay.errors import UsageError
from inlay.fill import hold
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video


class StreamDecoder:
    """Chunks must come in order, from a key chunk on. Every chunk gives its own frames at once: nothing to flush.

    decoder = StreamDecoder(tokenizer)
    for tokens in reader:
        show(decoder.push(tokens))
    """

    def __init__(self, tokenizer: Tokenizer, *, fill: str | None = None) -> None:
        self.tokenizer, self.fill_name = tokenizer, fill or tokenizer.default_fill
        tokenizer.find_fill(self.fill_name)
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next chunk must be a key chunk."""
        self._held_BCHW: Tensor | None = None  # the latent kept last at each place: the fill cache
        self._state: Any = None

    @property
    def latency_frames(self) -> int:
        """A chunk's frames come with the chunk."""
        return 0

    @torch.inference_mode()
    def push(self, tokens: Tokens) -> Video:
        """The frames of one chunk."""
        z_BCTHW = self.fill(tokens)
        if mode_of(tokens.recipe) != "stateful":
            return self.tokenizer.render(z_BCTHW, tokens.info, tokens.seconds)
        backbone: Any = self.tokenizer.backbone
        x_BCTHW, self._state = backbone.decode_next(z_BCTHW, self._state)
        info = tokens.info
        x_CTHW = x_BCTHW[0, :, : info.frames, : info.height, : info.width]
        return Video.from_pixels(x_CTHW, fps=info.fps, seconds=tokens.seconds)

    def flush(self) -> list[Video]:
        """Nothing is ever held back; ends the video."""
        self.reset()
        return []

    @torch.inference_mode()
    def fill(self, tokens: Tokens) -> Tensor:
        """[1, C, T, H, W] dense latents of one chunk, filled from the chunks before as well."""
        self.tokenizer.check(tokens)
        (span,) = tokens.spans
        mode = mode_of(tokens.recipe)
        if span.key:
            self.reset()
        elif self._held_BCHW is None:
            raise UsageError("this chunk goes on from one that was not decoded; begin at a key chunk")
        z_BCTHW = tokens.dense().to(self.tokenizer.device, self.tokenizer.dtype)
        keep_BTHW = tokens.mask[None].to(self.tokenizer.device)
        past_BCHW = self._held_BCHW
        self._held_BCHW = hold(z_BCTHW, keep_BTHW, past_BCHW)[:, :, -1]
        tau = tokens.recipe.tau
        if past_BCHW is None:
            return self.tokenizer.fill_cells(z_BCTHW, keep_BTHW, tau, self.fill_name)
        if mode == "dual-cache":
            return self._fill_first(z_BCTHW, keep_BTHW, past_BCHW, tau)
        return self._fill_after(z_BCTHW, keep_BTHW, past_BCHW, tau)

    def _fill_first(self, z_BCTHW: Tensor, keep_BTHW: Tensor, past_BCHW: Tensor, tau: float) -> Tensor:
        """Appendix D: the holes of the first slot take the fill cache and count as kept from then on."""
        first = torch.where(keep_BTHW[:, :1, None].transpose(1, 2), z_BCTHW[:, :, :1], past_BCHW[:, :, None])
        z_BCTHW = torch.cat([first, z_BCTHW[:, :, 1:]], dim=2)
        keep_BTHW = torch.cat([torch.ones_like(keep_BTHW[:, :1]), keep_BTHW[:, 1:]], dim=1)
        return self.tokenizer.fill_cells(z_BCTHW, keep_BTHW, tau, self.fill_name)

    def _fill_after(self, z_BCTHW: Tensor, keep_BTHW: Tensor, past_BCHW: Tensor, tau: float) -> Tensor:
        """The past stands before the chunk as a slot kept whole, which any fill understands, and is dropped again."""
        z_BCTHW = torch.cat([past_BCHW[:, :, None], z_BCTHW], dim=2)
        keep_BTHW = torch.cat([torch.ones_like(keep_BTHW[:, :1]), keep_BTHW], dim=1)
        return self.tokenizer.fill_cells(z_BCTHW, keep_BTHW, tau, self.fill_name)[:, :, 1:]
