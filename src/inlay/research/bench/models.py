# SPDX-License-Identifier: Apache-2.0
"""A name in, a tokenizer to be timed out: with its weights, or with random ones, on which time does not depend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inlay.errors import pick
from inlay.fill import Filler, Lit, plus
from inlay.research.bench.config import BenchConfig
from inlay.tokenizer import Tokenizer, pick_device

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RANDOM = ("cosmos-360p-random", "mini-random")


def load(config: BenchConfig) -> Tokenizer:
    device, dtype = pick_device(config.device), pick("dtype", config.dtype, DTYPES)
    if config.backbone in RANDOM:
        backbone = random_network(config.backbone).eval().requires_grad_(False).to(device=device, dtype=dtype)
        return with_lit(Tokenizer(backbone, device=device, dtype=dtype))
    return with_lit(Tokenizer.from_pretrained(config.backbone, device=device, dtype=dtype))


def random_network(name: str) -> Any:
    torch.manual_seed(0)
    if name == "mini-random":
        from inlay.backbones.mini import Mini

        return Mini()
    from inlay.backbones.cosmos import Cosmos, cosmos_360p

    return Cosmos(cosmos_360p())


def with_lit(tokenizer: Tokenizer) -> Tokenizer:
    """With a LIT, an untrained one where none is at hand."""
    if "lit" in tokenizer.filler.lits:
        return tokenizer
    torch.manual_seed(0)
    lit = Lit.build(replace(plus(), channels=tokenizer.spec.channels)).eval().requires_grad_(False)
    device, dtype = tokenizer.device, tokenizer.dtype
    filler = Filler({"lit": lit.to(device=device, dtype=dtype)}, device=device, dtype=dtype)
    return Tokenizer(tokenizer.backbone, filler=filler, device=device, dtype=dtype)
