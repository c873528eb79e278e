# SPDX-License-Identifier: Apache-2.0
"""The tutorial notebook: its cells run in order in one namespace, as Jupyter runs them; no output is stored."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

NOTEBOOK = json.loads((ROOT / "examples" / "tour.ipynb").read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def run_cell(code: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last expression is what Jupyter shows."""
    tree = ast.parse(code)
    *body, last = tree.body
    if not isinstance(last, ast.Expr):
        body, last = tree.body, None
    exec(compile(ast.Module(body, []), "tour.ipynb", "exec"), names)
    return eval(compile(ast.Expression(last.value), "tour.ipynb", "eval"), names) if last is not None else None


def test_it_is_a_notebook_without_output() -> None:
    assert NOTEBOOK["nbformat"] == 4 and len(CODE) >= 8
    assert all(not cell.get("outputs") for cell in NOTEBOOK["cells"])
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


@pytest.mark.slow
def test_the_cells_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL.Image import Image

    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [run_cell(code, names) for code in CODE]
    assert sum(isinstance(value, Image) for value in shown) == 3
    assert {p.name for p in (tmp_path / "tour").iterdir()} == {"clip.mp4", "clip.inlay", "clip.decoded.mp4"}
    quality = next(value for value in shown if isinstance(value, dict) and "lit" in value)
    assert quality["lit"] > quality["hold"], "what the text says of LIT"
    first, last, accuracy = shown[-1]
    assert last < first / 2 and accuracy == 1
