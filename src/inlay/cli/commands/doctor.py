# SPDX-License-Identifier: Apache-2.0
"""`inlay doctor`: what Inlay finds on this machine; nothing that is missing makes it fail."""

from __future__ import annotations

import importlib.util
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from inlay import __version__
from inlay.cli.screen import Screen
from inlay.errors import InlayError, install_line
from inlay.origin import commit, version_text

WEIGHTS = Path(__file__).parents[2] / "weights"
METRIC_WEIGHTS = ("lpips", "i3d")


def doctor(*, screen: Screen) -> None:
    """Say what is installed and found.

    Versions, extras, the device that would be used, weights, fast paths.
    """
    record = examine()
    screen.show(record, _rows(record))


def examine() -> dict[str, Any]:
    """Everything `inlay doctor` prints."""
    from inlay.kernels.rule import fast_paths

    return {
        "inlay": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages().pop(None, {}),
        "extras": {extra: found for extra, found in sorted(_packages().items(), key=str) if extra},
        "device": _device(),
        "weights": {p.name: p.stat().st_size for p in sorted(WEIGHTS.glob("*.safetensors"))},
        "defaults": _defaults(),
        "metric_weights": {name: _metric_weights(name) for name in METRIC_WEIGHTS},
        "fast_paths": fast_paths(),
        "able": _able(),
    }


def _rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The record as lines for a person."""
    weights = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in record["weights"].items())
    device = record["device"]
    rows = [
        ("inlay", f"{version_text().removeprefix('inlay ')}, Python {record['python']}, {record['platform']}"),
        ("packages", _listed(record["packages"])),
        ("device", f"{device['default']}: {device['name']} ({device['threads']} CPU threads)"),
        ("weights", weights or "none shipped with this copy; the name mini-untrained works without"),
    ]
    for name, own in record["defaults"].items():
        step = "steps from the deviations" if own["step"] is None else f"step {own['step']:g}"
        rows.append((f"defaults {name}", f"tau {own['tau']:g}, {step}"))
    for name, path in record["metric_weights"].items():
        rows.append((f"weights {name}", path or "not found; run: inlay fetch metrics"))
    for extra, packages in record["extras"].items():
        found, line = _listed({name: there for name, there in packages.items() if there}), install_line(str(extra))
        hint = (
            "" if all(packages.values()) else f"; to complete: {line}" if found else f"not installed; to add it: {line}"
        )
        rows.append((f"extra {extra}", found + hint))
    rows += [(name, "yes" if there else "no") for name, there in record["able"].items()]
    rows += [(f"fast path {i}", f"{name}: {state}") for i, (name, state) in enumerate(record["fast_paths"].items(), 1)]
    return rows


def _listed(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {found or 'missing'}" for name, found in packages.items())


def _packages() -> dict[str | None, dict[str, str | None]]:
    """Extra (None: needed always) -> package -> its version, of what the installed distribution declares."""
    try:
        lines = requires("inlay") or []
    except PackageNotFoundError:  # a source tree that was never installed declares nothing
        return {}
    found: dict[str | None, dict[str, str | None]] = {}
    for line in lines:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name:
            found.setdefault(extra[1] if extra else None, {})[name[0]] = _version(name[0])
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device() -> dict[str, Any]:
    import torch

    from inlay.tokenizer import pick_device

    device = pick_device("auto")
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {"default": str(device), "name": name, "threads": torch.get_num_threads(), "cuda": torch.version.cuda}


def _defaults() -> dict[str, dict[str, float | None]]:
    """What the profiles beside the weights say."""
    from inlay.masking import Profile

    found = {}
    for path in sorted(WEIGHTS.glob("*.profile.json")):
        profile = Profile.load(path)
        found[profile.backbone] = {"tau": profile.tau, "step": profile.step}
    return found


def _metric_weights(name: str) -> str | None:
    from inlay.measure.weights import find_weights

    try:
        return str(find_weights(name))
    except InlayError:
        return None


def _able() -> dict[str, bool]:
    import torch

    try:
        from av import codecs_available
    except ImportError:
        codecs_available = set()
    cuda = torch.cuda.is_available()
    return {
        "cuda": cuda,
        "mps": torch.backends.mps.is_available(),
        "triton": cuda and importlib.util.find_spec("triton") is not None,
        "bfloat16": cuda and torch.cuda.is_bf16_supported(),
        "entropy coder": importlib.util.find_spec("constriction") is not None,
        "h264 encoder": "libx264" in codecs_available,
    }
