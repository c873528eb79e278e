# SPDX-License-Identifier: Apache-2.0
"""The stages between a video and its reconstruction, each a call that can be timed on its own.

Legend: B batch, C channels, T slots or frames, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.codec import encode_clip, gather, paper_clips
from inlay.container.tokens import Tokens
from inlay.errors import InlayError
from inlay.masking import MaskConfig, keep_mask, keep_rate_of, nearest_tau
from inlay.research.bench.timing import flops, tensor_bytes, weight_bytes
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step: what to call, what it costs at least, and where it runs."""

    call: Callable[[], Any]
    flops: float = 0.0
    moved: float = 0.0  # bytes: inputs, outputs and weights, each once
    on_cpu: bool = False  # whatever the device of the networks
    missing: str = ""


class Case:
    """Clips of one size and length, and what each stage makes of them."""

    def __init__(
        self, tokenizer: Tokenizer, folder: Path, *, size: tuple[int, int], frames: int, batch: int, keep: float
    ) -> None:
        self.tokenizer, self.batch = tokenizer, batch
        self.folder = folder  # for the file that the first stage reads
        self.clip: Video = demo_clip(frames=frames, height=size[0], width=size[1])
        self.x_BCTHW = tokenizer.pixels([self.clip] * batch)
        self.z_BCTHW = tokenizer.encode_pixels(self.x_BCTHW)
        self.config = MaskConfig(tau=tau_for(self.z_BCTHW, keep))
        self.keep_BTHW = keep_mask(self.z_BCTHW, self.config)
        self.sparse_BCTHW = self.z_BCTHW * self.keep_BTHW[:, None]

    def stage(self, name: str) -> Stage:
        return getattr(self, f"_{name}")()

    def _encode(self) -> Stage:
        moved = tensor_bytes(self.x_BCTHW, self.z_BCTHW) + weight_bytes(getattr(self.network, "encoder", self.network))
        return Stage(call=lambda: self.tokenizer.encode_pixels(self.x_BCTHW), flops=self.work["encode"], moved=moved)

    def _mask(self) -> Stage:
        moved = tensor_bytes(self.z_BCTHW, self.keep_BTHW)
        return Stage(call=lambda: keep_mask(self.z_BCTHW, self.config), moved=moved)

    def _gather(self) -> Stage:
        share = self.keep_BTHW.float().mean().item()
        moved = tensor_bytes(self.keep_BTHW) + 2 * share * tensor_bytes(self.z_BCTHW)
        return Stage(call=lambda: self.z_BCTHW.permute(0, 2, 3, 4, 1)[self.keep_BTHW], moved=moved)

    def _lit(self) -> Stage:
        weights = weight_bytes(self.tokenizer.filler.lits["lit"])
        moved = tensor_bytes(self.z_BCTHW, self.keep_BTHW, self.z_BCTHW) + weights

        def fill() -> Tensor:
            return self.tokenizer.fill_cells(self.sparse_BCTHW, self.keep_BTHW, self.config.tau, "lit")

        return Stage(call=fill, flops=self.work["lit"], moved=moved)

    def _decode(self) -> Stage:
        moved = tensor_bytes(self.x_BCTHW, self.z_BCTHW) + weight_bytes(getattr(self.network, "decoder", self.network))

        return Stage(call=lambda: self.tokenizer.decode_latents(self.z_BCTHW), flops=self.work["decode"], moved=moved)

    def _entropy(self) -> Stage:
        try:
            import constriction  # noqa: F401
        except ImportError:
            return Stage(call=lambda: None, missing="constriction is not installed")
        from inlay.container.writer import to_bytes

        tokens = self.tokens()
        return Stage(call=lambda: [to_bytes(tokens) for _ in range(self.batch)], on_cpu=True)

    def _video(self) -> Stage:
        from inlay.video import read_video, write_video

        path = self.folder / "clip.mp4"
        try:
            write_video(self.clip, path, force=True)
        except (InlayError, ImportError) as error:
            return Stage(call=lambda: None, missing=str(error))
        return Stage(call=lambda: [read_video(path) for _ in range(self.batch)], on_cpu=True)

    def tokens(self) -> Tokens:
        """Those of the first clip."""
        recipe = self.tokenizer.recipe(replace(paper_clips(), fill="lit"), self.config.tau)
        return gather(encode_clip(self.tokenizer, self.clip), self.keep_BTHW[:1], recipe)

    @property
    def network(self) -> Any:
        return self.tokenizer.backbone

    @cached_property
    def work(self) -> dict[str, float]:
        """Operations of the three networks, counted on copies without numbers."""
        x, z, keep = (t.to("meta") for t in (self.x_BCTHW, self.z_BCTHW, self.keep_BTHW))
        tau = torch.zeros(self.batch, device="meta")
        return {
            "encode": flops(self.network, lambda net: net.encode(x)),
            "decode": flops(self.network, lambda net: net.decode(z)),
            "lit": flops(self.tokenizer.filler.lits["lit"], lambda lit: lit(z, keep, tau)),
        }


def tau_for(z_BCTHW: Tensor, keep: float) -> float:
    """The threshold that keeps about this share."""

    def kept(tau: float) -> float:
        return keep_rate_of(keep_mask(z_BCTHW[:1], MaskConfig(tau=tau)))

    return nearest_tau(kept, keep, tolerance=1e-3).tau
