# SPDX-License-Identifier: Apache-2.0
"""Import direction: a package imports only what stands to its right in docs/design.md; late imports count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.tree import PACKAGE

# Layers from the left (what people call) to the right (what everybody may use): a package imports only from layers to
# its right, and inside its own layer only what its line names. A new package needs a place here.
LAYERS: list[dict[str, set[str]]] = [
    {"__main__": {"cli"}, "cli": {"web"}, "web": set()},
    {
        "research": {"scale", "train", "export"},
        "caches": {"scale"},
        "scale": set(),
        "train": set(),
        "export": set(),
    },
    {"draw": {"measure"}, "measure": set()},
    {"tokenizer": set()},
    {"codec": set()},
    {
        "pack": {"container"},
        "video": set(),
        "backbones": set(),
        "masking": set(),
        "fill": set(),
        "container": set(),
        "vlm": set(),
    },
    {"kernels": set()},
    {
        "weightfile": {"errors", "files"},
        "sandbox": {"errors"},
        "types": {"errors"},
        "origin": set(),
        "files": {"errors"},
        "errors": set(),
    },
]

RESEARCHERS = {"cli", "research"}  # who may import research: it hangs on the core, and no part of the core on it


def allowed(part: str) -> set[str]:
    """What a part of the package may import besides itself."""
    for place, layer in enumerate(LAYERS):
        if part in layer:
            may = layer[part].union(*LAYERS[place + 1 :])
            return may if part in RESEARCHERS else may - {"research"}
    raise AssertionError(f"{part} is a new part of the package: give it a place in LAYERS")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, part) of each import of the package's own modules, late ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write it from `inlay.` on"
            base = node.module or ""
            names = [f"inlay.{alias.name}" for alias in node.names] if base == "inlay" else [base]
        for name in names:
            if name.startswith("inlay."):
                yield node.lineno, name.split(".")[1]


SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_right(path: Path) -> None:
    part = part_of(path)
    may = allowed(part)
    wrong = [f"line {line}: inlay.{name}" for line, name in imports_of(path) if name not in may | {part, "__version__"}]
    assert not wrong, f"{part} may import {sorted(may)}, but has {wrong}"


def test_the_guard_sees_late_imports(tmp_path: Path) -> None:
    source = tmp_path / "late.py"
    source.write_text("def f():\n    from inlay.video import read_video\n    import inlay.fill.lit\n")
    assert sorted(imports_of(source)) == [(2, "video"), (3, "fill")]
