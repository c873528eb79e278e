# SPDX-License-Identifier: Apache-2.0
"""Choose the cells of a chunk at one tau; with a second look also those that the fill gets wrong."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from inlay.codec.config import EncodeConfig
from inlay.codec.latents import LatentChunk
from inlay.codec.parts import Parts
from inlay.codec.placing import Placed, known
from inlay.masking import KEY_WEIGHT, SECOND_LOOK, Selection, Selector, SelectState, fill_error


class Looker:
    """The scan at one tau, and the fill's errors after it where the settings ask for a second look."""

    def __init__(self, parts: Parts, config: EncodeConfig, tau: float) -> None:
        self.parts, self.config, self.tau = parts, config, tau
        self.selector = Selector(config.mask(tau), noise=config.noise)

    def select(self, chunk: LatentChunk, state: SelectState) -> Selection:
        chosen = self.selector.select(chunk.compared_BCTHW, state, key=chunk.span.key)
        if not self.config.second_look:
            return chosen
        more = self.errors(chunk, state, chosen.keep_BTHW) >= SECOND_LOOK * self.tau
        keep_BTHW = chosen.keep_BTHW | more
        held_BCHW = self._known(chunk, state, keep_BTHW)[2].to(chunk.z_BCTHW.dtype)
        return replace(chosen, keep_BTHW=keep_BTHW, state=replace(chosen.state, reference_BCHW=held_BCHW))

    def errors(self, chunk: LatentChunk, state: SelectState, keep_BTHW: Tensor) -> Tensor:
        """[B, T, H, W]: how far each cell is from what a decoder will have in its place; zero where it is kept.

        Args:
            state: before the chunk.
        """
        z_BCTHW, known_BTHW, _, lead = self._known(chunk, state, keep_BTHW)
        filled = self.parts.fill_cells(z_BCTHW, known_BTHW, self.tau, self.config.fill)[:, :, lead:]
        error_BTHW = fill_error(chunk.z_BCTHW.float(), filled.float(), self.config.mask(self.tau).distance)
        if chunk.span.key:
            error_BTHW[:, 0] *= KEY_WEIGHT
        return error_BTHW.masked_fill(keep_BTHW, 0.0)

    def _known(self, chunk: LatentChunk, state: SelectState, keep_BTHW: Tensor) -> Placed:
        past_BCHW = None if chunk.span.key else state.reference_BCHW
        z_BCTHW = torch.where(keep_BTHW[:, None], chunk.z_BCTHW, 0).to(self.parts.filler.dtype)
        past_BCHW = None if past_BCHW is None else past_BCHW.to(z_BCTHW.dtype)
        thin = self.config.kept_of_keys == "thin"
        return known(z_BCTHW, keep_BTHW, past_BCHW, fills_first=self.config.mode == "dual-cache", thin=thin)
