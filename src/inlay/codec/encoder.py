# SPDX-License-Identifier: Apache-2.0
"""`Encoder`: frames to tokens, chunk by chunk, in constant memory however long the video."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from inlay.codec.calls import BatchLimits
from inlay.codec.choose import Chooser, choose_together
from inlay.codec.config import EncodeConfig
from inlay.codec.gather import Gathering
from inlay.codec.latents import LatentEncoder, Round
from inlay.codec.parts import Parts
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, UsageError, check_kind, check_number
from inlay.masking import Bucket, Budget
from inlay.types import Recipe
from inlay.video.frames import Video


class Encoder:
    """Keeps what changes, in a video that need never end; or in several that go in step.

    encoder = Encoder(tokenizer, tau=0.3)
    for frames in camera:
        for tokens in encoder.push(frames): ...
    for tokens in encoder.flush(): ...

    The tokens do not depend on how the frames are cut into pieces.

    Args:
        parts: a `Tokenizer`, or the parts of one.
        tau: the threshold; without one the backbone's calibrated one, or `budget`.
        budget: a tau, or with `bucket_seconds` a rate that is held from the past alone. Budgets of a whole video are
            solved by `WholeVideo`, which has to have seen it.
        streams: how many videos go in step; `push_all` takes a piece of each.
        first: what those who look on call the first of them.
        batch: how many of them go through the network together.
        limits: how many chunks of a shape fit into memory, learnt on the way.
    """

    def __init__(
        self,
        parts: Parts,
        config: EncodeConfig | None = None,
        *,
        tau: float | None = None,
        budget: Budget | None = None,
        streams: int = 1,
        first: int = 0,
        batch: int | None = None,
        limits: BatchLimits | None = None,
    ) -> None:
        check_kind(parts, Parts, "an encoder takes a Tokenizer")
        check_number("streams", streams, "a number of videos, 1 or more", lambda n: n >= 1, whole=True)
        if tau is not None and budget is not None:
            raise ConfigError("tau is a budget of its own; give one of the two", about=("tau",))
        self.parts = parts
        self.budget = budget or Budget(tau=tau)
        self.config = parts.settle(config, self.budget)
        self.latents = LatentEncoder(parts, self.config, streams=streams, first=first, batch=batch, limits=limits)
        self._choosers = [Chooser(parts, self.config, self.budget) for _ in range(streams)]
        self._waiting: deque[tuple[list[int], Gathering]] = deque()  # tokens on their way from the device
        self._ended: Bucket | None = None

    def __repr__(self) -> str:
        tau = "found on the way" if self.recipe is None else f"{self.recipe.tau:g}"
        mode, frames, streams = self.config.mode, self.config.chunk_frames, len(self._choosers)
        return f"Encoder({self.parts.spec.name}, tau {tau}, mode {mode}, chunks of {frames} frames, streams {streams})"

    def reset(self) -> None:
        """Forget everything, caches and frames not yet encoded: other videos begin."""
        self.latents.reset()
        self._waiting.clear()
        for chooser in self._choosers:
            chooser.reset()
        self._ended = None

    @property
    def recipe(self) -> Recipe | None:
        """How the tokens are made; known at once if tau is, else with the first chunk."""
        return self._choosers[0].recipe

    @property
    def latency_frames(self) -> int:
        """The most frames that a frame may have to wait for before its tokens come out."""
        return self.config.chunk_frames - 1

    @property
    def bucket(self) -> Bucket | None:
        """Where a causal rate control stands; after `flush`, where it stood at the end."""
        return self._choosers[0].state.bucket or self._ended

    def push(self, video: Video) -> list[Tokens]:
        """The chunks that these frames complete."""
        return self.push_all([video])[0]

    def flush(self) -> list[Tokens]:
        """The rest, at the end of a video; the next frame begins another one."""
        return self.flush_all()[0]

    def push_all(self, videos: Sequence[Video | None]) -> list[list[Tokens]]:
        """The chunks that a piece of each stream completes; None where a stream has nothing new."""
        return self._collect(videos, ended=False)

    def flush_all(self) -> list[list[Tokens]]:
        """The rest of every stream."""
        tokens = self._collect([None] * len(self._choosers), ended=True)
        bucket = self._choosers[0].state.bucket
        self.reset()
        self._ended = bucket
        return tokens

    def step(
        self, videos: Sequence[Video | None], *, ended: Sequence[bool], waits: bool = True
    ) -> Iterator[tuple[int, Tokens]]:
        """(stream, its next chunk), as a piece of each stream completes them. An error of one stream ends that one:
        `latents.errors` holds it.

        Args:
            ended: streams after whose piece nothing comes; the rest of them is encoded too.
            waits: for all chunks that are complete. Else some of them stay on the device until a later step, which
                must come: so it has work while the next pieces are fetched.
        """
        self.latents.push(videos)
        rounds = self.latents.rounds(ended=ended, waits=waits)
        plain = self._choosers[0].plain
        for number, tokens in self._choose_plainly(rounds, waits=waits) if plain else self._choose(rounds):
            self.parts.saw_tokens(tokens)
            yield number, tokens

    def encode(self, pieces: Iterable[Video], *, live: bool = False) -> Iterator[Tokens]:
        """All chunks of one video, as its pieces come in.

        Args:
            live: hand out a chunk as soon as its frames are there, though the device then waits for the next ones.
        """
        for piece in pieces:
            yield from self._collect([piece], ended=False, waits=live)[0]
        yield from self.flush()

    def replay(self, tokens: Tokens) -> None:
        """Go on after a chunk that an earlier run has written."""
        self._choosers[0].replay(tokens)

    def _collect(self, videos: Sequence[Video | None], *, ended: bool, waits: bool = True) -> list[list[Tokens]]:
        for video in videos:
            check_kind(video, (Video, type(None)), "an encoder takes frames as a Video")
        if len(videos) != (streams := len(self._choosers)):
            raise UsageError(f"of {streams} streams push_all takes a list of {streams} pieces; got {len(videos)}")
        done: list[list[Tokens]] = [[] for _ in self._choosers]
        for number, tokens in self.step(videos, ended=[ended] * len(done), waits=waits):
            done[number].append(tokens)
        for error in self.latents.errors.values():
            raise error
        return done

    def _choose(self, rounds: Iterable[Round]) -> Iterator[tuple[int, Tokens]]:
        """Stream by stream: each steers by what it has spent."""
        for chunks in rounds:
            for number, chunk in chunks:
                try:
                    tokens = self._choosers[number].choose(chunk)
                except Exception as error:  # of this stream; the others go on
                    self.latents.errors[number] = error
                else:
                    yield number, tokens

    def _choose_plainly(self, rounds: Iterable[Round], *, waits: bool) -> Iterator[tuple[int, Tokens]]:
        """All streams whose chunks are of one kind at once; tokens are made while the next round is at work."""
        waiting = self._waiting
        for chunks in rounds:
            groups: dict[object, Round] = {}
            for number, chunk in chunks:
                kind = chunk.compared_BCTHW.shape, chunk.z_BCTHW.shape, chunk.span.key
                groups.setdefault(kind, []).append((number, chunk))
            for group in groups.values():
                numbers = [number for number, _ in group]
                choosers = [self._choosers[number] for number in numbers]
                waiting.append((numbers, choose_together(choosers, [chunk for _, chunk in group])))
            while len(waiting) > self.latents.ahead * len(groups):
                yield from _finished(waiting.popleft())
        while waits and waiting:
            yield from _finished(waiting.popleft())


def _finished(gathered: tuple[list[int], Gathering]) -> Iterator[tuple[int, Tokens]]:
    numbers, gathering = gathered
    return zip(numbers, gathering.tokens(), strict=True)
