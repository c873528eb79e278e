# SPDX-License-Identifier: Apache-2.0
"""Load somebody else's backbone by `module:Class` (or `file.py:Class`) and check it against the protocol."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from inlay.backbones.base import Backbone, BackboneSpec
from inlay.errors import MissingError, UsageError

PATTERN = re.compile(r"(?P<module>[\w.]+|.+\.py):(?P<name>[A-Za-z_]\w*)")


def is_own(name: str) -> bool:
    return PATTERN.fullmatch(name) is not None


def load_own(name: str, weights: Path | None) -> Backbone:
    """Import and make it: called with nothing, or with the path of the weights."""
    match = PATTERN.fullmatch(name)
    assert match is not None, "the caller has looked"
    module = _import(match["module"])
    if not hasattr(module, match["name"]):
        raise UsageError(
            f"{match['module']} has no {match['name']}; give module:Class, a class or function that it has"
        )
    found = getattr(module, match["name"])
    made: Any = found if isinstance(found, torch.nn.Module) else _make(found, name, weights)
    check(made, name)
    if isinstance(made, torch.nn.Module):
        made.eval().requires_grad_(False)
    return made if made.spec.name == name else Renamed(made, name)


def _import(module: str) -> ModuleType:
    here = str(Path.cwd())  # the module of a project lies beside the project's data more often than in site-packages
    sys.path.insert(0, here)
    try:
        if not module.endswith(".py"):
            return importlib.import_module(module)
        spec = importlib.util.spec_from_file_location(Path(module).stem, module)
        assert spec is not None and spec.loader is not None, "a .py file has a loader"
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[Path(module).stem] = loaded
        spec.loader.exec_module(loaded)
        return loaded
    except FileNotFoundError as error:
        raise MissingError(f"there is no file {module}; give file.py:Class") from error
    except ImportError as error:
        raise MissingError(f"{module} cannot be imported ({error}); is it installed, or in this folder?") from error
    finally:
        sys.path.remove(here)


def _make(found: Any, name: str, weights: Path | None) -> Any:
    if not callable(found):
        raise UsageError(f"{name} is a {type(found).__name__}; give a class, or a function that makes a backbone")
    try:
        return found() if weights is None else found(weights)
    except TypeError as error:
        given = "without arguments" if weights is None else "with the path of the weights"
        raise UsageError(f"{name} cannot be called {given} ({error}); see docs/backbones.md") from error


def check(backbone: Any, name: str) -> None:
    """Refuse what does not speak the protocol, with the part that is missing."""
    missing = [part for part in ("spec", "encode", "decode", "to") if not hasattr(backbone, part)]
    if missing:
        raise UsageError(f"{name} has no {' and no '.join(missing)}; a backbone needs spec, encode, decode and to")
    if not isinstance(backbone.spec, BackboneSpec):
        raise UsageError(f"{name}: spec is a {type(backbone.spec).__name__}, not an inlay.backbones.BackboneSpec")


class Renamed:
    """A backbone under the name it was asked for, so that token files record a name that loads it again."""

    def __init__(self, backbone: Any, name: str) -> None:
        self.inner, self.name = backbone, name

    @property
    def spec(self) -> BackboneSpec:
        return replace(self.inner.spec, name=self.name)

    def encode(self, x_BCTHW: torch.Tensor) -> torch.Tensor:
        return self.inner.encode(x_BCTHW)

    def decode(self, z_BCTHW: torch.Tensor) -> torch.Tensor:
        return self.inner.decode(z_BCTHW)

    def to(self, *args: Any, **kwargs: Any) -> Renamed:
        self.inner.to(*args, **kwargs)
        return self

    def __getattr__(self, part: str) -> Any:
        return getattr(self.inner, part)
