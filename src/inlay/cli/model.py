# SPDX-License-Identifier: Apache-2.0
"""Which model a command uses: its flags, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.cli.options import CHOICES
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
    profile: str | None = None  # of `inlay calibrate`, in place of the one beside the weights

    def __post_init__(self) -> None:
        from inlay.tokenizer import pick_device

        pick("dtype", self.dtype, dict.fromkeys(CHOICES["dtype"]))
        if self.fill is not None:
            pick("fill", self.fill, dict.fromkeys(CHOICES["fill"]))
        if self.weights is not None and not Path(self.weights).exists():
            raise MissingError(f"no weights at {self.weights}; give the path of a file or a folder")
        if self.profile is not None and not Path(self.profile).is_file():
            raise MissingError(f"no profile at {self.profile}; make one: inlay calibrate")
        pick_device(self.device)

    def load(self) -> Tokenizer:
        import torch

        from inlay.tokenizer import Tokenizer

        return Tokenizer.from_pretrained(
            self.backbone,
            weights=self.weights,
            fill=self.fill,
            profile=self.profile,
            device=self.device,
            dtype=getattr(torch, self.dtype),
            trust=self.trust,
        )
