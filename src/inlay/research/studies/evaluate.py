# SPDX-License-Identifier: Apache-2.0
"""Run one clip under one setting: allocate, fill, decode, measure, with calls counted and steps timed."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from inlay.codec import Watch, encode_clip, gather, paper_clips
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, number_of
from inlay.masking import MaskConfig
from inlay.measure import MeasureConfig, bits_per_pixel, count_tokens
from inlay.measure.base import remember, short_products
from inlay.research.studies.datasets import Clip
from inlay.research.studies.records import Record, read_pair
from inlay.research.studies.rules import FILL_OF, RULES, Setting
from inlay.tokenizer import Tokenizer
from inlay.types import Recipe
from inlay.video.frames import Video

Tell = Callable[[str], None]


@dataclass
class Tally(Watch):
    """Evaluations so far, by phase and kind (`encode`, `decode`, `fill`); each clip that enters a network is one."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    phase: str = "run"

    def on_network(self, network: str, clips: int) -> None:
        self.counts.setdefault(self.phase, Counter())[network] += clips

    def of(self, phase: str) -> dict[str, int]:
        return {kind: self.counts.get(phase, Counter())[kind] for kind in ("encode", "decode", "fill")}


class Scene:
    """One clip, encoded once, for any number of rules (the `Scene` of rules)."""

    def __init__(self, bench: Bench, name: str, video: Video) -> None:
        self.bench, self.name, self.video = bench, name, video
        self.reference = Video(frames=remember(video.frames.to(bench.measure.device)), fps=video.fps)
        self.tau = bench.tau
        self.x_BCTHW = bench.tokenizer.pixels([video])
        with bench.step("encode", "encode"):
            self.chunk = encode_clip(bench.tokenizer, video)
        self.z_BCTHW = self.chunk.z_BCTHW
        self.encode_seconds = bench.seconds["encode"]

    @torch.inference_mode()
    def rebuild(self, keep_BTHW: Tensor, setting: Setting) -> Tensor:
        z_BCTHW = self.bench.filled(self.z_BCTHW[:, :, : keep_BTHW.shape[1]], keep_BTHW, setting)
        return self.bench.tokenizer.decode_latents(z_BCTHW).float().clamp(-1, 1)

    @torch.inference_mode()
    def decode_full(self) -> Tensor:
        return self.bench.tokenizer.decode_latents(self.z_BCTHW.to(self.bench.tokenizer.dtype)).float().clamp(-1, 1)

    def tokens(self, keep_BTHW: Tensor, setting: Setting) -> Tokens:
        return gather(self.chunk, keep_BTHW, self.bench.recipe(setting))


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """What a rule made of a clip, before it is measured."""

    video: Video
    tokens: Tokens
    bits_per_pixel: float
    evaluations: dict[str, dict[str, int]]
    seconds: dict[str, float]

    @property
    def nfe(self) -> int:
        """Evaluations of encoder or decoder that the choice of cells took."""
        spent = self.evaluations["allocate"]
        return spent["encode"] + spent["decode"]


class Bench:
    """A tokenizer, the count of its networks' evaluations, the threshold of ours, and the metrics' settings."""

    def __init__(self, tokenizer: Tokenizer, *, tau: float | None = None, measure: MeasureConfig | None = None) -> None:
        self.tally, self.seconds = Tally(), dict[str, float]()  # of the step or run at hand
        self.warm = False  # whether a clip has gone through it, for those who time
        self.tokenizer = tokenizer
        self.measure = measure or MeasureConfig(device=str(tokenizer.device))
        profile = tokenizer.profile
        if tau is None and profile is None:
            name = tokenizer.spec.name
            raise ConfigError(
                f"there is no default tau for {name}; give one, or calibrate it (inlay calibrate)",
                about=("tau", "profile"),
            )
        self.tau = profile.tau if tau is None and profile is not None else float(tau or 0.0)
        MaskConfig(tau=self.tau)  # refuses what is no threshold before a clip is read

    @property
    def machine(self) -> str:
        """What the numbers are made on, in words."""
        device = self.tokenizer.device
        if device.type == "cuda":
            short = ", TF32 in the networks of metrics" if short_products() else ""
            return f"cuda ({torch.cuda.get_device_name(device)}), torch {torch.__version__}{short}"
        threads = number_of(torch.get_num_threads(), "thread")
        return f"{device.type} ({platform.machine()}), {threads}, torch {torch.__version__}"

    def fill_of(self, setting: Setting) -> str:
        return setting.fill or FILL_OF.get(setting.rule) or self.tokenizer.filler.default

    def tau_of(self, setting: Setting) -> float:
        """The threshold a fill is given: that of the mask, or for rules without one, that of ours."""
        own = setting.rule in ("ours", "hold", "linear") and setting.criterion == "latent-l1"
        return setting.tau if own and setting.tau is not None else self.tau

    def recipe(self, setting: Setting) -> Recipe:
        precision = "fp32" if setting.precision == "none" else setting.precision
        config = replace(paper_clips(), precision=precision)
        return self.tokenizer.recipe(replace(config, fill=self.fill_of(setting)), self.tau_of(setting))

    def model(self, setting: Setting) -> dict[str, Any]:
        """What a result depends on besides clip and setting."""
        name = self.fill_of(setting)
        lit = self.tokenizer.filler.lits.get(name)
        spec, step = self.tokenizer.spec, self.recipe(setting).step
        return {
            "backbone": spec.name,
            "weights": spec.weight_hash,
            "fill": name,
            "fill_weights": lit.weight_hash if lit is not None else "",
            "tau": self.tau,
            "dtype": str(self.tokenizer.dtype).removeprefix("torch."),
        } | ({} if step is None else {"step": step})

    def filled(self, z_BCTHW: Tensor, keep_BTHW: Tensor, setting: Setting) -> Tensor:
        z_BCTHW = z_BCTHW.to(self.tokenizer.dtype)
        return self.tokenizer.fill_cells(z_BCTHW, keep_BTHW, self.tau_of(setting), self.fill_of(setting))

    @contextmanager
    def step(self, name: str, phase: str) -> Iterator[None]:
        """Book what runs inside: its seconds, the device's own queue included, and the evaluations of a phase."""
        self._wait()
        self.tally.phase, start = phase, time.perf_counter()
        with self.tokenizer.watched_by(self.tally):
            yield
        self._wait()
        self.seconds[name] = time.perf_counter() - start

    def _wait(self) -> None:
        if self.tokenizer.device.type == "cuda":
            torch.cuda.synchronize(self.tokenizer.device)

    def scene(self, clip: Clip) -> Scene:
        return Scene(self, clip.name, clip.load())

    def run(self, scene: Scene, setting: Setting) -> RuleResult:
        """Allocate, store, fill, decode."""
        self.tally.counts, self.seconds = {}, {"encode": scene.encode_seconds}
        with self.step("allocate", "allocate"), torch.inference_mode():
            keep_BTHW = RULES[setting.rule](scene, setting)
        tokens = scene.tokens(keep_BTHW, setting)
        tokens, bits = _stored(tokens, setting)
        with self.step("fill", "rebuild"):
            device = self.tokenizer.device
            z_BCTHW = self.filled(tokens.dense().to(device), tokens.mask[None].to(device), setting)
        with self.step("decode", "rebuild"):
            info, x_CTHW = tokens.info, self.tokenizer.decode_latents(z_BCTHW)[0]
            x_CTHW = x_CTHW[:, : info.frames, : info.height, : info.width]
            video = Video.from_pixels(x_CTHW, fps=info.fps, seconds=scene.video.seconds)
        return RuleResult(
            video=video,
            tokens=tokens,
            bits_per_pixel=bits,
            evaluations={phase: self.tally.of(phase) for phase in ("allocate", "rebuild")},
            seconds=dict(self.seconds),
        )

    def record(self, scene: Scene, setting: Setting, metrics: Sequence[str], base: Record) -> Record:
        """Run one setting on one clip and measure what is asked for; what `base` has read already is kept."""
        outcome = self.run(scene, setting)
        reading = read_pair(scene.reference, outcome.video, metrics, self.measure)
        return replace(
            with_counts(base, outcome.tokens),
            reading=base.reading.merged(reading),
            bits_per_pixel=outcome.bits_per_pixel,
            nfe=outcome.nfe,
            evaluations=outcome.evaluations,
            seconds=outcome.seconds,
            machine="; ".join(dict.fromkeys(filter(None, [*base.machine.split("; "), self.machine]))),
        )


def with_counts(record: Record, tokens: Tokens) -> Record:
    slots = tuple(tokens.mask.flatten(1).sum(1).tolist())
    return replace(record, tokens=len(tokens), cells=tokens.cells, slots=slots)


def _stored(tokens: Tokens, setting: Setting) -> tuple[Tokens, float]:
    """The tokens as a file would give them back, and their bits a pixel; without a precision, at 16 bits a number."""
    if setting.precision == "none":
        return tokens, count_tokens(tokens).bits_per_pixel
    from inlay.container import as_stored, to_bytes

    size = len(to_bytes(tokens))
    return as_stored(tokens), bits_per_pixel(size, tokens.info)


def conventions_of(config: MeasureConfig) -> dict[str, Any]:
    """The settings that change a reading; not where it was computed, nor the seed of the resampling."""
    return {k: v for k, v in asdict(config).items() if k not in ("device", "seed")}
