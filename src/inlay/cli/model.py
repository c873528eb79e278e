# SPDX-License-Identifier: Apache-2.0
"""Flags in, settings that are checked before anything is loaded, and a loaded tokenizer out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.cli.options import CHOICES
from inlay.errors import ConfigError, MissingError, pick

if TYPE_CHECKING:
    from inlay.masking import Profile
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

        found = self._profile()
        tokenizer = Tokenizer.from_pretrained(
            self.backbone,
            weights=self.weights,
            fill=self.fill,
            device=self.device,
            dtype=getattr(torch, self.dtype),
            trust=self.trust,
        )
        if found is not None:
            spec = tokenizer.spec
            if found.weight_hash != spec.weight_hash:
                raise ConfigError(
                    f"{self.profile} is a profile of {found.backbone} with weights {found.weight_hash or 'unknown'}, "
                    f"not of {spec.name} with {spec.weight_hash}; make one for it: inlay calibrate"
                )
            tokenizer.profile = found
        return tokenizer

    def _profile(self) -> Profile | None:
        """Read before the weights are, which takes longer."""
        if self.profile is None:
            return None
        from inlay.masking import Profile

        return Profile.load(Path(self.profile))


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
