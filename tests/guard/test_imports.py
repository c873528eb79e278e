# SPDX-License-Identifier: Apache-2.0
"""Import direction: rooms do not import one another, and everything to the right only calls left."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.tree import PACKAGE

LEAVES = {"types", "errors", "weightfile", "origin"}
ROOMS = {"video", "backbones", "masking", "fill", "container"}
CORE = LEAVES | ROOMS | {"kernels", "tokenizer", "stream", "pack"}
BELOW_APP = CORE | {"measure", "train", "study", "scale", "bench", "export"}

# part of the package -> what it may import besides itself; a new part needs a line here
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "origin": set(),
    "types": {"errors", "video", "container"},  # Video.save and Tokens.save knock, late, at the rooms that write
    "weightfile": {"errors"},
    **dict.fromkeys(ROOMS, LEAVES | {"kernels"}),
    "kernels": LEAVES,
    "pack": LEAVES,
    "tokenizer": LEAVES | ROOMS | {"kernels", "pack", "stream"},
    "stream": LEAVES | ROOMS | {"kernels", "tokenizer"},
    "measure": CORE,
    "train": CORE | {"measure"},
    "study": CORE | {"measure"},
    "scale": CORE | {"measure"},
    "web": CORE | {"measure"},
    "bench": CORE,
    "export": CORE,
    "app": BELOW_APP | {"web"},
    "__main__": {"app"},
}


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
def test_imports_point_left(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"{part} is a new part of the package: say in MAY_IMPORT what it may import"
    allowed = MAY_IMPORT[part] | {part, "__version__"}
    wrong = [f"line {line}: inlay.{name}" for line, name in imports_of(path) if name not in allowed]
    assert not wrong, f"{part} may import {sorted(MAY_IMPORT[part])}, but has {wrong}"


def test_the_guard_sees_late_imports(tmp_path: Path) -> None:
    source = tmp_path / "late.py"
    source.write_text("def f():\n    from inlay.video import read_video\n    import inlay.fill.lit\n")
    assert sorted(imports_of(source)) == [(2, "video"), (3, "fill")]
