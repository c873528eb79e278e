# SPDX-License-Identifier: Apache-2.0
"""This machine in, a record of what Inlay finds on it out; nothing that is missing makes it fail."""

from __future__ import annotations

import importlib.util
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from inlay import __version__

WEIGHTS = Path(__file__).parent.parent / "weights"
METRIC_WEIGHTS = ("lpips", "i3d")


def examine() -> dict[str, Any]:
    """Everything `inlay doctor` prints."""
    return {
        "inlay": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(None),
        "extras": {extra: _packages(extra) for extra in _extras()},
        "device": _device(),
        "weights": {p.name: p.stat().st_size for p in sorted(WEIGHTS.glob("*.safetensors"))},
        "metric_weights": {name: _metric_weights(name) for name in METRIC_WEIGHTS},
        "fast_paths": _fast_paths(),
        "able": _able(),
    }


def examination_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The record as lines for a person."""
    weights = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in record["weights"].items())
    device = record["device"]
    rows = [
        ("inlay", f"{record['inlay']}, Python {record['python']}, {record['platform']}"),
        ("packages", _listed(record["packages"])),
        ("device", f"{device['default']}: {device['name']} ({device['threads']} CPU threads)"),
        ("weights", weights or "none shipped with this copy; the name mini-untrained works without"),
    ]
    for name, path in record["metric_weights"].items():
        rows.append((f"weights {name}", path or "not found; run: inlay fetch metrics"))
    for extra, packages in record["extras"].items():
        missing = not all(packages.values())
        hint = f"; to complete: pip install 'inlay[{extra}]'" if missing else ""
        rows.append((f"extra {extra}", _listed(packages) + hint))
    rows += [(name, "yes" if there else "no") for name, there in record["able"].items()]
    rows += [(f"fast path {i}", f"{name}: {state}") for i, (name, state) in enumerate(record["fast_paths"].items(), 1)]
    return rows


def _listed(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {found or 'missing'}" for name, found in packages.items())


def _requirements() -> list[tuple[str, str | None]]:
    """(package, extra or None) of each line the installed distribution declares."""
    try:
        lines = requires("inlay") or []
    except PackageNotFoundError:  # a source tree that was never installed declares nothing
        return []
    found = []
    for line in lines:
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name:
            found.append((name[0], extra[1] if extra else None))
    return found


def _extras() -> list[str]:
    return sorted({extra for _, extra in _requirements() if extra})


def _packages(extra: str | None) -> dict[str, str | None]:
    return {name: _version(name) for name, wanted in _requirements() if wanted == extra}


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


def _metric_weights(name: str) -> str | None:
    from inlay.errors import InlayError
    from inlay.measure.weights import find_weights

    try:
        return str(find_weights(name))
    except InlayError:
        return None


def _fast_paths() -> dict[str, str]:
    from inlay.kernels.report import fast_paths

    return fast_paths()


def _able() -> dict[str, bool]:
    import torch

    cuda = torch.cuda.is_available()
    return {
        "cuda": cuda,
        "mps": torch.backends.mps.is_available(),
        "triton": cuda and importlib.util.find_spec("triton") is not None,
        "bfloat16": cuda and torch.cuda.is_bf16_supported(),
        "entropy coder": importlib.util.find_spec("constriction") is not None,
        "h264 encoder": _encodes("libx264"),
    }


def _encodes(codec: str) -> bool:
    if importlib.util.find_spec("av") is None:
        return False
    import av

    return codec in av.codecs_available
