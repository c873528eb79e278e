# SPDX-License-Identifier: Apache-2.0
"""The settings of a job: what its tokens are to be, and how it is carried out."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.codec import CPU_BATCH, GPU_BATCH, EncodeConfig
from inlay.errors import MissingError, UsageError, check_number, pick
from inlay.masking import LADDER, Budget
from inlay.scale.layout import FORMATS, TAR, known
from inlay.types import KEY_SLOTS, PRECISIONS, SCALES
from inlay.video import Geometry

if TYPE_CHECKING:
    from inlay.tokenizer import Tokenizer

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class TokenizeConfig:
    """What the tokens of a data set are to be: all of it stays the same when a job is resumed."""

    backbone: str | PathLike[str] = field(default="mini", metadata={"help": "a name, a folder, or module:Class"})
    weights: str | PathLike[str] | None = field(default=None, metadata={"help": "weights to use instead of its own"})
    trust: bool = field(default=False, metadata={"help": "load pickles and TorchScript"})
    fill: str | None = field(default=None, metadata={"help": "the fill that token files suggest"})
    device: str = field(default="auto", metadata={"help": "where the network runs"})
    dtype: str = field(default="float32", metadata={"help": "arithmetic", "choices": DTYPES})
    tau: float | None = field(default=None, metadata={"help": "threshold"})
    keep: float | None = field(default=None, metadata={"help": "share of the cells of each video"})
    tokens: int | None = field(default=None, metadata={"help": "number of tokens of each video"})
    bits: float | None = field(default=None, metadata={"help": "bits a pixel of each video"})
    exact: bool = field(default=False, metadata={"help": "with keep: exactly that share"})
    bucket_seconds: float | None = field(default=None, metadata={"help": "hold a rate as the video goes by"})
    criterion: str = field(default="latent-l1", metadata={"help": "distance"})
    reference: str = field(default="last-kept", metadata={"help": "what a cell is compared with"})
    precision: str = field(default="q8", metadata={"help": "how kept cells are stored", "choices": PRECISIONS})
    step: str | float | None = field(default=None, metadata={"help": "how coarsely q8 rounds", "choices": LADDER})
    key_slots: str = field(default="auto", metadata={"help": "cells of key slots to keep", "choices": KEY_SLOTS})
    second_look: bool = field(default=False, metadata={"help": "fill once, and keep what the fill gets wrong"})
    scale: str = field(default="auto", metadata={"help": "size that videos are encoded at", "choices": SCALES})
    mode: str = field(default="auto", metadata={"help": "what chunks pass on"})
    chunk_frames: int = field(default=33, metadata={"help": "frames encoded together"})
    key_seconds: float = field(default=10.0, metadata={"help": "longest time between key chunks"})
    cuts: bool = field(default=True, metadata={"help": "a key chunk at every scene cut"})
    noise: bool = field(default=False, metadata={"help": "do not spend tokens on sensor noise"})
    size: str = field(default="keep", metadata={"help": "resize and crop"})
    keep_going: bool = field(default=False, metadata={"help": "use the intact part of a damaged video"})
    format: str = field(default=TAR, metadata={"help": "of the shards", "choices": FORMATS})
    shard_videos: int = field(default=0, metadata={"help": "videos in a shard at most; 0: by how many there are"})
    batch: int = field(
        default=0, metadata={"help": f"videos of one size encoded together; 0: {GPU_BATCH} on a GPU, else {CPU_BATCH}"}
    )

    def __post_init__(self) -> None:
        for name in ("backbone", "weights"):  # a plan holds text
            if isinstance(path := getattr(self, name), PathLike):
                object.__setattr__(self, name, os.fspath(path))
        pick("shard format", self.format, FORMATS)
        pick("dtype", self.dtype, dict.fromkeys(DTYPES))
        Geometry.parse(self.size)
        _ = self.budget, self.encode
        for name in ("shard_videos", "batch"):
            wanted = "a number of videos, 0 for the default"
            check_number(name, getattr(self, name), wanted, lambda n: n >= 0, whole=True)
        if self.weights is not None and not Path(self.weights).exists():
            raise MissingError(f"no weights at {self.weights}; give the path of a file or a folder")

    @property
    def budget(self) -> Budget:
        return Budget(**known(Budget, vars(self)))

    @property
    def encode(self) -> EncodeConfig:
        return EncodeConfig(**known(EncodeConfig, vars(self)))

    def load(self, device: str | None = None) -> Tokenizer:
        import torch

        from inlay.tokenizer import Tokenizer

        return Tokenizer.from_pretrained(
            self.backbone,
            weights=self.weights,
            fill=self.fill,
            device=device or self.device,
            dtype=getattr(torch, self.dtype),
            trust=self.trust,
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How a job is carried out; nothing of it changes a byte of the result, and a resumed job may choose anew."""

    engine: str = "local"
    workers: int = 0  # 0: one for each GPU, or for each core
    threads: int | None = None  # of torch in each process; None: its share of the cores. A begun job keeps its own
    address: str | None = None  # of a Ray cluster

    def __post_init__(self) -> None:
        wanted = "a number of processes, 0 for as many as fit"
        check_number("workers", self.workers, wanted, lambda n: n >= 0, whole=True)
        if self.threads is not None:
            check_number("threads", self.threads, "a number from 1 on", lambda n: n >= 1, whole=True)
        if self.address is not None and self.engine != "ray":
            raise UsageError(
                "the address is that of a Ray cluster; choose the engine ray with it", about=("address", "engine")
            )
