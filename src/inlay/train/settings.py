# SPDX-License-Identifier: Apache-2.0
"""Training settings as a TOML file: written to be edited, and read back with every name and type checked."""

from __future__ import annotations

import json
import tomllib
from dataclasses import Field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from inlay.errors import ConfigError, UsageError, pick
from inlay.train.config import ClipConfig, LossConfig, OptimConfig, TrainConfig, option_fields

GROUPS: dict[str, type] = {"": TrainConfig, "clips": ClipConfig, "loss": LossConfig, "optim": OptimConfig}


def settings_text(config: TrainConfig, task: str | None = None) -> str:
    """Every setting, or those that do something for one task, with its meaning, as TOML.

    >>> print(settings_text(TrainConfig()).splitlines()[0])
    steps = 10000  # optimiser steps
    """
    lines: list[str] = []
    group = ""
    for owner, field in option_fields(task):
        if owner != group:
            group = owner
            lines += ["", f"[{group}]"]
        value = getattr(getattr(config, owner) if owner else config, field.name)
        lines.append(f"{field.name} = {json.dumps(value)}  # {field.metadata['help']}")  # as TOML has it too
    return "\n".join(lines) + "\n"


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings that a file names, as `TrainConfig.with_options` takes them; it may name a few or all."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: not a TOML file of settings: {reason}", about="config") from error
    tables = {name: found.pop(name) for name in ("clips", "loss", "optim") if isinstance(found.get(name), dict)}
    return {
        name: _checked(path, group, name, value)
        for group, table in {"": found, **tables}.items()
        for name, value in table.items()
    }


def _checked(path: str | Path, group: str, name: str, value: Any) -> Any:
    fields: dict[str, Field[Any]] = {f.name: f for owner, f in option_fields() if owner == group}
    place = f"setting of [{group}] in {path}:" if group else f"setting in {path}:"
    pick(place, name, fields)
    hint = get_type_hints(GROUPS[group])[name]
    if not _fits(value, hint):
        wanted = getattr(hint, "__name__", str(hint)) if get_origin(hint) is None else f"a list, {hint}"
        raise ConfigError(f"{path}: {name} wants {wanted}; got {value!r}", about="config")
    return tuple(value) if isinstance(value, list) else value


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        return isinstance(value, list) and len(value) == len(parts) and all(map(_fits, value, parts))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint
