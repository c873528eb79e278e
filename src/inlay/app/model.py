# SPDX-License-Identifier: Apache-2.0
"""Flags in, settings that are checked before anything is loaded, and a loaded tokenizer out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.app.options import CHOICES
from inlay.errors import MissingError, pick

if TYPE_CHECKING:
    from inlay.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which networks, where, in which arithmetic."""

    backbone: str = "mini"
    weights: str | None = None
    fill: str | None = None
    device: str = "auto"
    dtype: str = "float32"
    trust: bool = False  # pickles and TorchScript among the weights may be loaded

    def __post_init__(self) -> None:
        from inlay.tokenizer import pick_device

        pick("dtype", self.dtype, dict.fromkeys(CHOICES["dtype"]))
        if self.fill is not None:
            pick("fill", self.fill, dict.fromkeys(CHOICES["fill"]))
        if self.weights is not None and not Path(self.weights).exists():
            raise MissingError(f"no weights at {self.weights}; give the path of a file or a folder")
        pick_device(self.device)

    def load(self) -> Tokenizer:
        import torch

        from inlay.tokenizer import Tokenizer

        return Tokenizer.from_pretrained(
            self.backbone,
            weights=self.weights,
            fill=self.fill,
            device=self.device,
            dtype=getattr(torch, self.dtype),
            trust=self.trust,
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How tokens are to be made; no tau means the model's own."""

    tau: float | None = None
    criterion: str = "latent-l1"
    reference: str = "last-kept"
    precision: str = "q8"

    def __post_init__(self) -> None:
        from inlay.masking import MaskConfig

        MaskConfig(tau=0.0 if self.tau is None else self.tau, criterion=self.criterion, reference=self.reference)
        pick("precision", self.precision, dict.fromkeys(CHOICES["precision"]))
