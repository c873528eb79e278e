# SPDX-License-Identifier: Apache-2.0
"""`Filler`: the fills at hand for one backbone, by name, on one device. Codec, studies and readers fill through it.

Legend: B batch, C channels, T slots, H W grid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from inlay.errors import MissingError, pick
from inlay.files import beside
from inlay.fill.lit import Lit, load_lit
from inlay.fill.plain import FILLS, Fill, hold
from inlay.kernels import Replay
from inlay.types import Recipe

MOST = torch.finfo(torch.float32).max  # what can be said of a tau that is larger, or infinite
LONGEST = 16  # slots that a LIT sees at once: its time and memory grow with their square, and it was trained on fewer
LIT_FILES = {"lit": "lit", "lit-paper": "lit-paper"}  # fill -> suffix of the weight file beside the backbone's


class Filler:
    """Fills dropped cells: `hold` and `linear` always, a LIT where its weights are at hand."""

    def __init__(
        self,
        lits: Mapping[str, Lit] | None = None,
        *,
        default: str | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        self.lits, self.absent = dict(lits or {}), dict(absent or {})  # and why others are not there
        self.device, self.dtype = torch.device(device), dtype
        self.default = default or ("lit" if "lit" in self.lits else "hold")
        self._replays: dict[str, Replay[[Tensor, Tensor, Tensor], Tensor]] = {
            name: Replay(lit) for name, lit in self.lits.items()
        }
        self.find(self.default)

    @classmethod
    def load(
        cls,
        folders: Sequence[Path],
        backbone: str,
        weight_hash: str,
        *,
        default: str | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Filler:
        """The LITs that were trained for these weights, from the first folder that has them; others would fill in
        noise. One that is passed over in any but the last folder, which is the package's own, is named in the log."""
        lits: dict[str, Lit] = {}
        absent: dict[str, str] = {}
        for name, suffix in LIT_FILES.items():
            for path in beside(folders, backbone, f"{suffix}.safetensors"):
                absent.setdefault(name, "")
                if name in lits or not path.is_file():
                    continue
                lit = load_lit(path)
                if lit.backbone_hash in ("", weight_hash):
                    lits[name] = lit.to(device=device, dtype=dtype)
                else:
                    absent[name] = f"{path} is for a backbone with weights {lit.backbone_hash}, these are {weight_hash}"
                    if path.parent in folders[:-1]:  # a folder that the user gave: ours is the last
                        logging.getLogger(__name__).warning("not used: %s", absent[name])
            absent[name] = absent[name] or f"they would be {path.name}, in the folder given as weights"
        return cls(lits, default=default, device=device, dtype=dtype, absent=absent)

    @property
    def names(self) -> tuple[str, ...]:
        return (*FILLS, *self.lits)

    def find(self, name: str) -> Fill | Lit:
        """The fill called `name`; a LIT only where its weights are at hand."""
        if name in LIT_FILES and name not in self.lits:
            why = f" ({self.absent[name]})" if name in self.absent else ""
            raise MissingError(
                f"there are no weights for the fill {name!r} here{why}; fill with 'hold', or train a LIT"
            )
        table: dict[str, Fill | Lit] = {**FILLS, **self.lits}
        return pick("fill", name, table)

    def check_name(self, name: str) -> None:
        """Refuse what no reader would know; a LIT may be suggested where its weights are not at hand."""
        pick("fill", name, dict.fromkeys((*self.names, *LIT_FILES)))

    def check(self, recipe: Recipe, name: str | None = None) -> None:
        """Refuse a LIT that was trained for another backbone than the tokens were made with."""
        fill = self.find(name or self.default)
        made_for = fill.backbone_hash if isinstance(fill, Lit) else ""
        if made_for not in ("", recipe.weight_hash):
            raise MissingError(
                f"the weights of {name or self.default!r} were trained for a backbone with weights {made_for}, the "
                f"tokens were made with {recipe.backbone} {recipe.weight_hash}; give others, or fill with 'hold'"
            )

    @torch.inference_mode()
    def fill(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau: float | Tensor, name: str | None = None) -> Tensor:
        """Dense latents from those of the kept cells; the values of dropped cells are never read.

        Args:
            tau: the threshold of the mask, one for all clips or [B] of them; LITs read it.
            name: which fill, in place of the default.
        """
        name = name or self.default
        run = self.find(name)
        if not isinstance(run, Lit):
            return run(z_BCTHW, keep_BTHW)
        if not isinstance(tau, Tensor):
            tau = torch.full((len(z_BCTHW),), min(tau, MOST), dtype=torch.float32, device=z_BCTHW.device)
        if z_BCTHW.shape[2] <= LONGEST + 1:
            return self._replays[name](z_BCTHW, keep_BTHW, tau)
        return torch.cat(list(self._in_turn(self._replays[name], z_BCTHW, keep_BTHW, tau)), dim=2)

    @staticmethod
    def _in_turn(
        run: Callable[[Tensor, Tensor, Tensor], Tensor], z_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor
    ) -> Iterator[Tensor]:
        """A long chunk piece by piece, each led by what was kept last before it, as chunks of a stream are."""
        held_BCTHW = hold(z_BCTHW, keep_BTHW)
        for first in range(0, z_BCTHW.shape[2], LONGEST):
            z, keep, lead = z_BCTHW[:, :, first : first + LONGEST], keep_BTHW[:, first : first + LONGEST], 0
            if first:
                z = torch.cat([held_BCTHW[:, :, first - 1 : first], z], dim=2)
                keep, lead = torch.cat([torch.ones_like(keep[:, :1]), keep], dim=1), 1
            yield run(z, keep, tau_B)[:, :, lead:]
