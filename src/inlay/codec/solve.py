# SPDX-License-Identifier: Apache-2.0
"""A whole video and a budget in, tokens that keep to it out. Only --psnr decodes; the rest needs latents alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from inlay.codec.config import StreamConfig
from inlay.codec.encoder import mask_config, usual_change
from inlay.codec.latents import LatentChunk, LatentStream
from inlay.codec.spool import Spool
from inlay.container import TokenWriter
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.masking import Budget, Selection, Selector, SelectState, Solution, largest_tau, smallest_tau
from inlay.tokenizer import Tokenizer
from inlay.types import Recipe
from inlay.video.frames import Video

Quality = Callable[[Iterable[Tokens]], float]  # decodes the tokens of a video and tells its PSNR
BITS_SLACK = 0.005  # of the budget that may stay unused: each trial packs the whole video
COUNT_SLACK = 0.001
OUT_OF_REACH = 1e30  # a tau that keeps nothing but what is kept whole


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A budget that was solved. Iterate over it for the tokens, chunk by chunk."""

    video: WholeVideo
    recipe: Recipe
    solution: Solution
    extra: int = 0  # cells to keep beyond what tau keeps, those nearest to it

    def __iter__(self) -> Iterator[Tokens]:
        return self.video.tokens(self.recipe, extra=self.extra)


class WholeVideo:
    """A video whose latents have been computed and wait on disk.

    with WholeVideo(tokenizer, reader.chunks()) as video:
        plan = video.solve(Budget(keep=0.3))
        for tokens in plan: ...
    """

    def __init__(
        self, tokenizer: Tokenizer, pieces: Iterable[Video], config: StreamConfig | None = None, **options: Any
    ) -> None:
        self.config = (config or StreamConfig()).resolve(tokenizer.spec)
        options = {k: v for k, v in options.items() if k != "tau"}
        self._recipe = replace(
            tokenizer.recipe(tau=0.0, **options), streaming=self.config.mode, created_by=self.config.maker
        )
        stream = LatentStream(tokenizer, self.config, self._recipe.criterion)
        self.spool = Spool(_all(stream, pieces))
        heads = self.spool.chunks
        if not heads:
            self.close()
            raise ConfigError("a budget needs a video; there were no frames")
        first = next(iter(self.spool))
        self.slot_cells = int(first.z_BCTHW[0, 0, 0].numel())
        self.cells = sum(c.span.slots for c in heads) * self.slot_cells
        self.fixed = sum(c.span.key for c in heads) * self.slot_cells  # first slots of key chunks are kept whole
        self.pixels = sum(c.info.frames for c in heads) * first.info.width * first.info.height
        self.start = tokenizer.profile.tau if tokenizer.profile is not None else usual_change(first)

    def __enter__(self) -> WholeVideo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.spool.close()

    def recipe(self, tau: float) -> Recipe:
        return replace(self._recipe, tau=tau)

    def selections(self, recipe: Recipe) -> Iterator[tuple[LatentChunk, Selection]]:
        selector = Selector(mask_config(recipe), noise=self.config.noise)
        state = SelectState()
        for chunk in self.spool:
            chosen = selector.select(chunk.compared_BCTHW, state, key=chunk.span.key)
            state = chosen.state
            yield chunk, chosen

    def tokens(self, recipe: Recipe, *, extra: int = 0) -> Iterator[Tokens]:
        """The chunks at the recipe's tau, and the `extra` dropped cells that changed most."""
        more = self._more(recipe, extra)
        for (chunk, chosen), cells in zip(self.selections(recipe), more, strict=True):
            keep_BTHW = chosen.keep_BTHW.clone()
            keep_BTHW.view(-1)[cells] = True
            yield chunk.tokens(keep_BTHW, recipe)

    def count(self, tau: float) -> int:
        return sum(int(chosen.keep_BTHW.sum()) for _, chosen in self.selections(self.recipe(tau)))

    def bits(self, tau: float) -> float:
        """Of the whole file: it is packed, and not kept."""
        size = Scale()
        recipe, info = self.recipe(tau), self.spool.chunks[0].info
        with TokenWriter(size, info=info, recipe=recipe) as writer:
            for tokens in self.tokens(recipe):
                writer.append(tokens)
        return 8.0 * size.bytes

    def solve(self, budget: Budget, quality: Quality | None = None) -> Plan:
        """The tau that grants the budget; refuses one that cannot be granted, and says what could."""
        if budget.kind == "bits":
            return self._solve_bits(budget.bits or 0.0)
        if budget.kind == "psnr":
            return self._solve_psnr(budget.psnr or 0.0, quality)
        if budget.kind == "tau":
            raise ConfigError("a tau needs no solving; give it to the encoder")
        wanted = budget.tokens if budget.tokens is not None else int((budget.keep or 0.0) * self.cells + 1e-9)
        return self._solve_count(wanted, budget)

    def _solve_count(self, wanted: int, budget: Budget) -> Plan:
        if wanted < self.fixed:
            share = self.fixed / self.cells
            raise ConfigError(
                f"--{budget.kind} {wanted if budget.tokens else budget.keep:g} allows {wanted:,} tokens, and the first "
                f"slots of key chunks, which are kept whole, need {self.fixed:,} ({share:.1%} of the cells); "
                f"allow more, or have fewer key chunks (--key-every)"
            )
        if wanted > self.cells:
            raise ConfigError(f"--tokens {wanted:,} is more than the {self.cells:,} cells of this video; ask for fewer")
        found = smallest_tau(self.count, wanted, start=self.start, slack=COUNT_SLACK)
        if found is None:
            raise ConfigError(f"no tau keeps as few as {wanted:,} cells; allow more")
        exact = budget.exact or budget.tokens is not None
        return Plan(
            video=self,
            recipe=self.recipe(found.tau),
            solution=found,
            extra=wanted - int(found.value) if exact else 0,
        )

    def _solve_bits(self, bits: float) -> Plan:
        limit = bits * self.pixels
        least = self.bits(OUT_OF_REACH) / self.pixels
        found = smallest_tau(self.bits, limit, start=self.start, slack=BITS_SLACK) if least <= bits else None
        if found is None:
            raise ConfigError(
                f"--bits {bits:g} is less than the {least:.4f} bits a pixel that the first slots of key chunks take; "
                "allow more, or have fewer key chunks (--key-every)"
            )
        return Plan(video=self, recipe=self.recipe(found.tau), solution=found)

    def _solve_psnr(self, target: float, quality: Quality | None) -> Plan:
        if quality is None:
            raise ConfigError("--psnr needs the original video to compare with")
        found = largest_tau(lambda tau: quality(self.tokens(self.recipe(tau))), target, start=self.start)
        if found is None:
            best = quality(self.tokens(self.recipe(0.0)))
            raise ConfigError(
                f"--psnr {target:g} is beyond this backbone: with every cell kept the video comes back at {best:.2f} dB"
            )
        return Plan(video=self, recipe=self.recipe(found.tau), solution=found)

    def _more(self, recipe: Recipe, extra: int) -> Iterator[Tensor]:
        """For each chunk, the cells among the `extra` best dropped ones of the video. Memory follows `extra`."""
        best = torch.empty(0)
        where = torch.empty(0, 2, dtype=torch.int64)  # chunk, cell
        if extra:
            for number, (_, chosen) in enumerate(self.selections(recipe)):
                score = torch.where(chosen.keep_BTHW, -1.0, chosen.score_BTHW).flatten()
                cells = (score >= 0).nonzero()[:, 0]
                place = torch.stack([torch.full_like(cells, number), cells], dim=1)
                best, where = torch.cat([best, score[cells]]), torch.cat([where, place])
                order = best.argsort(descending=True, stable=True)[:extra]
                best, where = best[order], where[order]
        for number in range(len(self.spool)):
            yield where[where[:, 0] == number, 1]


def _all(stream: LatentStream, pieces: Iterable[Video]) -> Iterator[LatentChunk]:
    for piece in pieces:
        yield from stream.push(piece)
    yield from stream.flush()


class Scale(io.BytesIO):
    """A file that weighs what is written to it and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._at = 0

    def write(self, data: Any) -> int:
        self._at += len(data)
        self.bytes = max(self.bytes, self._at)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET, "a token writer counts from the start"
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at
