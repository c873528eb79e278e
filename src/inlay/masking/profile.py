# SPDX-License-Identifier: Apache-2.0
"""What calibration learnt about a backbone, as a file: the usual tau, the scores, and which tau keeps how much."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path

from inlay.errors import ConfigError, MissingError
from inlay.masking.budget import LARGEST_TAU
from inlay.masking.dial import Dial
from inlay.masking.steps import OWN, channel_steps, step_size

MOST = sys.float_info.max


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile:
    """Side table of one backbone with one set of weights."""

    backbone: str
    weight_hash: str
    tau: float  # the default threshold
    score_mean: float = 0.0  # of latent-l1 against the last kept latent
    score_std: float = 0.0
    taus: tuple[float, ...] = ()  # increasing, with the keep rate each gave on the calibration set
    keep_rates: tuple[float, ...] = ()
    data: str = ""  # what it was measured on
    clips: int = 0
    latent_mean: tuple[float, ...] = ()  # of each channel, slots after the first
    latent_std: tuple[float, ...] = ()
    first_mean: tuple[float, ...] = ()  # the same of slot 0, which sees one frame
    first_std: tuple[float, ...] = ()
    score_edges: tuple[float, ...] = ()  # histogram of the scores at about tau; the last bin takes what lies above
    score_counts: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()  # of each channel: grey levels of the picture a unit of latent, root mean square
    step: float | None = None  # the default place on the ladder of steps; None: q8 chooses its own
    cache_step: float | None = None  # the one for caches of all cells; None: not measured
    thin: bool = False  # key slots are better thinned out where tokens are counted
    dial_taus: tuple[float, ...] = ()  # the pairs of tau and step that spend bits best, finest first
    dial_steps: tuple[float, ...] = ()
    dial_bits: tuple[float, ...] = ()  # a pixel, and decibels: what the pairs gave on the calibration set
    dial_psnr: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if isinstance(value, list):  # as JSON gives them
                object.__setattr__(self, name, tuple(value))
        for field in fields(self):
            if not _fits(getattr(self, field.name), str(field.type)):
                raise ConfigError(f"{field.name} of a profile is {field.type}, of finite numbers")
        if not 0 <= self.tau <= LARGEST_TAU:
            raise ConfigError(f"tau is a distance, from 0 to {LARGEST_TAU:g}; got {self.tau:g}", about="tau")
        if len(self.taus) != len(self.keep_rates):
            raise ConfigError(
                f"a profile pairs each tau with a keep rate; got {len(self.taus)}, {len(self.keep_rates)}"
            )

        if any(gain < 0 for gain in self.gains) or (self.gains and not max(self.gains) > 0):
            raise ConfigError("gains of a profile are above 0, or 0 where a channel does not reach the picture")
        for step in (self.step, self.cache_step):
            if step is not None and (not self.gains or step_size(step) is None):
                raise ConfigError("a step of a profile needs the gains of its channels", about="step")

        self._check_dial()

    def __repr__(self) -> str:
        return f"Profile({self.backbone}, weights {self.weight_hash}, tau {self.tau:g}; {self.data or 'no data'})"

    def _check_dial(self) -> None:
        rows = (self.dial_taus, self.dial_steps, self.dial_bits, self.dial_psnr)
        if len({len(row) for row in rows}) != 1:
            raise ConfigError(
                f"a dial has as many taus, steps, bits and decibels; got {', '.join(map(str, map(len, rows)))}"
            )
        if self.dial_taus and not self.gains:
            raise ConfigError("a dial of a profile needs the gains of its channels")
        if any(not 0 <= tau <= LARGEST_TAU for tau in self.dial_taus) or list(self.dial_taus) != sorted(self.dial_taus):
            raise ConfigError("taus of a dial are distances that never fall")
        if self.dial_taus and not self.dial_taus[-1] > 0:
            raise ConfigError("the last tau of a dial is above 0: beyond it cells are dropped")
        if any(step_size(step) is None for step in self.dial_steps) or list(self.dial_steps) != sorted(self.dial_steps):
            raise ConfigError("steps of a dial are above 0 and never fall")
        for name, row in (("bits", self.dial_bits), ("decibels", self.dial_psnr)):
            if any(value <= 0 for value in row) or any(a <= b for a, b in pairwise(row)):
                raise ConfigError(f"{name} of a dial are above 0 and fall from pair to pair")

    @property
    def dial(self) -> Dial | None:
        """Tau and step as one setting, where that was measured."""
        if not self.dial_taus:
            return None
        return Dial(taus=self.dial_taus, steps=self.dial_steps, bits=self.dial_bits, psnr=self.dial_psnr)

    def steps(self, step: float) -> tuple[float, ...]:
        """The step of each channel at a place on the ladder."""
        if not self.gains:
            raise ConfigError(
                f"there are no gains of {self.backbone}, so a step of {step:g} says nothing; calibrate it, "
                f"or have its steps from the {OWN}",
                about=("step", "profile"),
            )
        return channel_steps(self.gains, step)

    @property
    def selectivity(self) -> float:
        """Coefficient of variation of the scores: how well one threshold can tell still from moving."""
        return self.score_std / self.score_mean if self.score_mean else 0.0

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def load(path: Path) -> Profile:
        try:
            return Profile(**json.loads(path.read_text()))
        except OSError as error:
            raise MissingError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, TypeError, RecursionError, ConfigError) as error:
            raise ConfigError(
                f"{path} is not a profile ({str(error)[:200]}); make one again with: inlay calibrate"
            ) from error


def _fits(value: object, kind: str) -> bool:
    """Whether a value that JSON brought is of the type that a field names."""
    if kind.startswith("tuple"):
        return isinstance(value, tuple) and all(_fits(one, "float") for one in value)
    if kind in ("str", "bool"):
        return type(value).__name__ == kind
    if kind.endswith(" | None") and value is None:
        return True
    number = isinstance(value, int if kind == "int" else (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= MOST  # type: ignore[arg-type]
