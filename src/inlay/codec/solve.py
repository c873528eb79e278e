# SPDX-License-Identifier: Apache-2.0
"""`WholeVideo`: solve the budget of a whole video on its latents, which wait on disk. Only psnr decodes.

A search turns one setting until the budget is granted: tau; or the dial of tau and step, where the profile has one and
neither was given; or the step alone, where tau was given.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.codec.choose import usual_change
from inlay.codec.config import EncodeConfig
from inlay.codec.gather import gather
from inlay.codec.latents import LatentChunk, LatentEncoder
from inlay.codec.look import Looker
from inlay.codec.parts import Parts
from inlay.codec.spool import Spool
from inlay.container import TokenWriter
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.masking import (
    FIRST_LOOK,
    LADDER,
    Budget,
    Selection,
    Selector,
    SelectState,
    Solution,
    largest_tau,
    smallest_tau,
)
from inlay.masking.dial import BEYOND
from inlay.masking.thin import fewest
from inlay.types import STEPPED, Recipe
from inlay.video.frames import Video

Quality = Callable[[Iterable[Tokens]], float]  # decodes the tokens of a video and tells its PSNR
BITS_SLACK = 0.005  # of the budget that may stay unused: each trial packs the whole video
COUNT_SLACK = 0.001
OUT_OF_REACH = 1e30  # a tau that keeps nothing but what is kept whole


class TooFewBitsError(ConfigError):
    """A budget of bits that cannot be granted, with the least that can."""

    def __init__(self, message: str = "", *, about: str | tuple[str, ...] = (), least: float = 0.0) -> None:
        super().__init__(message, about=about)
        self.least = least


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """The setting that a search turns: what it stands for, and where the search begins."""

    recipe: Callable[[float], Recipe]
    start: float


@dataclass(frozen=True, kw_only=True, eq=False)
class SolvedVideo:
    """A budget that was solved. Iterate over it for the tokens, chunk by chunk."""

    video: WholeVideo
    recipe: Recipe
    solution: Solution
    extra: int | None = None  # cells to keep beyond what the scan keeps at tau, those that change or are off most
    looked: int = 0  # decodes that it took to choose the size

    def __iter__(self) -> Iterator[Tokens]:
        return self.video.tokens(self.recipe, extra=self.extra)


class WholeVideo:
    """A video whose latents have been computed and wait on disk.

    with WholeVideo.of(tokenizer, reader.chunks()) as video:
        for tokens in video.solve(Budget(keep=0.3)): ...
    """

    def __init__(self, parts: Parts, config: EncodeConfig | None = None) -> None:
        self.parts = parts
        self.config = (config or EncodeConfig()).resolve(parts.spec)
        self.spool = Spool()
        self.cells = self.pixels = 0
        self._keys: list[tuple[int, int]] = []  # rows and columns of each key slot
        self.start = 0.0  # the tau that a search begins with

    @classmethod
    def of(cls, parts: Parts, pieces: Iterable[Video], config: EncodeConfig | None = None) -> WholeVideo:
        """Encode a video, given in any pieces."""
        video = cls(parts, config)
        try:
            video.read(pieces)
        except BaseException:
            video.close()
            raise
        return video

    def read(self, pieces: Iterable[Video]) -> None:
        latents = LatentEncoder(self.parts, self.config)
        for piece in and_end(pieces):
            latents.push([piece])
            for chunks in latents.rounds(ended=[piece is None]):
                for _, chunk in chunks:
                    self.add(chunk)
            for error in latents.errors.values():
                raise error
        self.check_not_empty()

    def add(self, chunk: LatentChunk) -> None:
        """The next chunk of the video."""
        cells = int(chunk.z_BCTHW[0, 0, 0].numel())
        if not len(self.spool):
            self.start = self.parts.profile.tau if self.parts.profile is not None else usual_change(chunk)
        self.spool.append(chunk)
        self.cells += chunk.span.slots * cells
        self._keys += [(chunk.z_BCTHW.shape[3], chunk.z_BCTHW.shape[4])] * chunk.span.key
        self.pixels += chunk.info.frames * chunk.info.width * chunk.info.height

    def settled(self, budget: Budget) -> WholeVideo:
        """The same latents with the settings that this budget is granted by."""
        video = copy(self)
        video.config = self.parts.settle(self.config, budget)
        return video

    @property
    def fixed(self) -> int:
        """Cells of key slots that are kept at any tau."""
        thin = self.config.kept_of_keys == "thin"
        return sum(fewest(*size) if thin else size[0] * size[1] for size in self._keys)

    def check_not_empty(self) -> None:
        if not len(self.spool):
            raise ConfigError("a budget needs a video; there were no frames")

    def __enter__(self) -> WholeVideo:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.spool.close()

    def recipe(self, tau: float) -> Recipe:
        return self.parts.recipe(self.config, tau)

    def selections(self, recipe: Recipe, *, scored: bool = False) -> Iterator[tuple[LatentChunk, Selection]]:
        selector = Selector(self.config.mask(recipe.tau), noise=self.config.noise)
        state = SelectState()
        for chunk in self.spool:
            chosen = selector.select(chunk.compared_BCTHW, state, key=chunk.span.key, scored=scored)
            state = chosen.state
            yield chunk, chosen

    def tokens(self, recipe: Recipe, *, extra: int | None = None) -> Iterator[Tokens]:
        """The chunks at the recipe's tau.

        Args:
            extra: so many dropped cells more: those that changed most, or with a second look those that the fill gets
                most wrong. Without a number a second look keeps all that are off by too much.
        """
        if extra is None:
            looker, state = Looker(self.parts, self.config, recipe.tau), SelectState()
            for chunk in self.spool:
                chosen = looker.select(chunk, state)
                state = chosen.state
                yield gather(chunk, chosen.keep_BTHW, recipe)
            return
        more = self._more(recipe, extra)
        for (chunk, chosen), cells in zip(self.selections(recipe), more, strict=True):
            keep_BTHW = chosen.keep_BTHW.clone()
            keep_BTHW.view(-1)[cells] = True
            yield gather(chunk, keep_BTHW, recipe)

    def count(self, tau: float) -> int:
        return sum(int(chosen.keep_BTHW.sum()) for _, chosen in self.selections(self.recipe(tau)))

    def turn(self, budget: Budget) -> Turn:
        """What grants this budget."""
        profile, config = self.parts.profile, self.config
        if budget.tau is not None:
            return Turn(recipe=self._by_step(budget.tau), start=(profile and profile.step) or LADDER["normal"])
        dial = self.parts.dial(config)
        if dial is None or budget.kind not in ("bits", "psnr"):
            return Turn(recipe=self.recipe, start=self.start)

        def recipe(place: float) -> Recipe:
            tau, step = dial.at(place)
            return self.parts.recipe(replace(config, step=step), tau)

        return Turn(recipe=recipe, start=dial.place_of(budget))

    def _by_step(self, tau: float) -> Callable[[float], Recipe]:
        if self.config.step is not None:
            raise ConfigError(
                "tau, step and a budget contradict each other: nothing is left to grant it with; give two of them",
                about=("tau", "step"),
            )
        if self.config.precision not in STEPPED:
            raise ConfigError(
                f"a budget with a fixed tau is granted by the step, and {self.config.precision} has none; "
                "give no tau, or precision q8",
                about=("tau", "precision"),
            )
        finest, coarsest = LADDER["lossless-ish"] / BEYOND, LADDER["small"] * BEYOND
        return lambda step: self.parts.recipe(replace(self.config, step=min(max(step, finest), coarsest)), tau)

    def bits(self, recipe: Recipe) -> float:
        """Of the whole file: it is packed, and not kept."""
        size, info = CountingFile(), self.spool.chunks[0].info
        with TokenWriter(size, info=info, recipe=recipe) as writer:
            for tokens in self.tokens(recipe):
                writer.append(tokens)
        return 8.0 * size.bytes

    def solve(self, budget: Budget, quality: Quality | None = None) -> SolvedVideo:
        """The tau that grants the budget; refuses one that cannot be granted, and says what could."""
        self.check_not_empty()
        return self.settled(budget)._solve(budget, quality)

    def _solve(self, budget: Budget, quality: Quality | None) -> SolvedVideo:
        if budget.kind == "bits":
            return self._solve_bits(budget, self.turn(budget))
        if budget.kind == "psnr":
            return self._solve_psnr(budget, self.turn(budget), quality)
        if budget.kind == "tau":
            raise ConfigError("a tau needs no solving; give it to the encoder", about="tau")
        wanted = budget.tokens if budget.tokens is not None else int((budget.keep or 0.0) * self.cells + 1e-9)
        return self._solve_count(wanted, budget)

    def _solve_count(self, wanted: int, budget: Budget) -> SolvedVideo:
        if wanted < self.fixed:
            share = self.fixed / self.cells
            how = "thinned out" if self.config.kept_of_keys == "thin" else "which are kept whole"
            asked = f"{wanted:,} tokens" if budget.tokens else f"a keep rate of {budget.keep:g} ({wanted:,} tokens)"
            raise ConfigError(
                f"{asked} is too few: the first slots of key chunks, {how}, need "
                f"{self.fixed:,} ({_up(share, 3):.1%} of the cells); allow more, or have fewer key chunks",
                about=(budget.kind, "key_seconds"),
            )
        if wanted > self.cells:
            raise ConfigError(
                f"{wanted:,} tokens are more than the {self.cells:,} cells of this video; ask for fewer", about="tokens"
            )
        second = self.config.second_look
        scanned = max(self.fixed, int(FIRST_LOOK * wanted)) if second else wanted
        found = smallest_tau(self.count, scanned, start=self.start, slack=COUNT_SLACK)
        if found is None:
            raise ConfigError(f"no tau keeps as few as {wanted:,} cells; allow more", about=budget.kind)
        exact = budget.exact or budget.tokens is not None or second
        extra = wanted - int(found.value) if exact else 0
        return SolvedVideo(video=self, recipe=self.recipe(found.tau), solution=found, extra=extra)

    def _solve_bits(self, budget: Budget, turn: Turn) -> SolvedVideo:
        bits = budget.asked
        least = self.bits(turn.recipe(OUT_OF_REACH)) / self.pixels
        found = None
        if least <= bits:
            limit = bits * self.pixels
            found = smallest_tau(lambda place: self.bits(turn.recipe(place)), limit, start=turn.start, slack=BITS_SLACK)
        if found is None:
            what, instead = "the first slots of key chunks take", "have fewer key chunks"
            if budget.tau is not None:
                what, instead = f"tau {budget.tau:g} takes with the coarsest steps", "a larger tau"
            raise TooFewBitsError(
                f"{bits:g} bits a pixel is less than the {_up(least, 4):.4f} that {what}; allow more, or {instead}",
                about=("bits", "key_seconds" if budget.tau is None else "tau"),
                least=least,
            )
        return SolvedVideo(video=self, recipe=turn.recipe(found.tau), solution=found)

    def _solve_psnr(self, budget: Budget, turn: Turn, quality: Quality | None) -> SolvedVideo:
        if quality is None:
            raise ConfigError("a PSNR needs the original video to compare with", about="psnr")
        target = budget.asked
        found = largest_tau(lambda place: quality(self.tokens(turn.recipe(place))), target, start=turn.start)
        if found is None:
            best = math.floor(quality(self.tokens(turn.recipe(0.0))) * 100) / 100
            smaller = None if self.config.coded_scale == "1" else self.config.scale
            given = {"tau": budget.tau, "step": self.config.step, "scale": smaller}
            held = " and ".join(f"{name} {value}" for name, value in given.items() if value is not None)
            beyond = f"beyond {held}" if held else "beyond this backbone"
            raise ConfigError(
                f"{target:g} dB is {beyond}: at its finest the video comes back at {best:.2f} dB; ask for less",
                about="psnr",
            )
        return SolvedVideo(video=self, recipe=turn.recipe(found.tau), solution=found)

    def _more(self, recipe: Recipe, extra: int) -> Iterator[Tensor]:
        """For each chunk, the cells among the `extra` best dropped ones of the video. Memory follows `extra`."""
        best = torch.empty(0)
        where = torch.empty(0, 2, dtype=torch.int64)  # chunk, cell
        if extra:
            for number, (keep_BTHW, score_BTHW) in enumerate(self._scores(recipe)):
                score = torch.where(keep_BTHW, -1.0, score_BTHW).flatten()
                cells = (score >= 0).nonzero()[:, 0]
                place = torch.stack([torch.full_like(cells, number), cells], dim=1)
                best, where = torch.cat([best, score[cells]]), torch.cat([where, place])
                order = best.argsort(descending=True, stable=True)[:extra]
                best, where = best[order], where[order]
        for number in range(len(self.spool)):
            yield where[where[:, 0] == number, 1]

    def _scores(self, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
        """For each chunk the mask of the scan, and by how much each dropped cell wants to be kept."""
        second = self.config.second_look
        looker, state = Looker(self.parts, self.config, recipe.tau), SelectState()
        for chunk, chosen in self.selections(recipe, scored=not second):
            score_BTHW = looker.errors(chunk, state, chosen.keep_BTHW) if second else chosen.score_BTHW
            assert score_BTHW is not None, "scores were asked for"
            yield chosen.keep_BTHW, score_BTHW
            state = chosen.state


def _up(value: float, digits: int) -> float:
    """Rounded up: what is told as the least that can be granted is granted."""
    return math.ceil(round(value * 10.0**digits, 6)) / 10.0**digits


def and_end(pieces: Iterable[Video]) -> Iterator[Video | None]:
    yield from pieces
    yield None


class CountingFile(io.BytesIO):
    """A file that counts the bytes written to it and keeps none."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._at = 0

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._at += len(data)
        self.bytes = max(self.bytes, self._at)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET, "a token writer counts from the start"
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at
