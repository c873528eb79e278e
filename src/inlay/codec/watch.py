# SPDX-License-Identifier: Apache-2.0
"""`Watch`: look on while videos go through a codec, without standing in its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inlay.container.tokens import Tokens

if TYPE_CHECKING:
    from inlay.codec.latents import LatentChunk


class Watch:
    """Override what you want to see; nothing you do changes what is encoded or decoded.

    with tokenizer.watched_by(Counter()):
        tokenizer.encode("clip.mp4")
    """

    def on_network(self, network: str, clips: int) -> None:
        """A network ran on this many clips: `encode`, `fill` or `decode`."""

    def on_latents(self, chunk: LatentChunk) -> None:
        """A chunk was encoded; its cells are not chosen yet."""

    def on_tokens(self, tokens: Tokens) -> None:
        """The cells of a chunk were chosen."""
