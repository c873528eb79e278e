# SPDX-License-Identifier: Apache-2.0
"""The environment variable INLAY_FAST: 0 (no fast path), 1 (the default), or compile."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from inlay.errors import ConfigError

LEVELS = ("0", "1", "compile")


def level() -> str:
    """What INLAY_FAST says."""
    said = os.environ.get("INLAY_FAST", "") or "1"
    if said not in LEVELS:
        raise ConfigError(f"INLAY_FAST is one of {', '.join(LEVELS)}; got {said!r}")
    return said


@contextmanager
def at_level(said: str) -> Iterator[None]:
    """Set INLAY_FAST for a while."""
    before = os.environ.get("INLAY_FAST")
    os.environ["INLAY_FAST"] = said
    try:
        yield
    finally:
        if before is None:
            del os.environ["INLAY_FAST"]
        else:
            os.environ["INLAY_FAST"] = before


def is_on() -> bool:
    """Whether fast paths that cost nothing to set up may run."""
    return level() != "0"


def compiles() -> bool:
    """Whether networks may be compiled: the first call of each shape then takes a minute, later ones much less."""
    return level() == "compile"


@cache
def has_cuda() -> bool:
    """Whether there is a CUDA device; looked up once, for the rule is asked at every call."""
    return torch.cuda.is_available()


@cache
def has_triton() -> bool:
    """Whether Triton is installed; looked up once, and not imported."""
    return importlib.util.find_spec("triton") is not None


@cache
def has_isal() -> bool:
    """Whether ISA-L's Python package is installed."""
    return importlib.util.find_spec("isal") is not None
