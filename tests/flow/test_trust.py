# SPDX-License-Identifier: Apache-2.0
"""Token files from strangers: what a file says never chooses what code runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inlay.cli.main import main
from inlay.tokenizer import Tokenizer
from tests.conftest import moving_square

EVIL = "from pathlib import Path\nPath('ran').touch()\n\n\nclass Thing:\n    pass\n"


@pytest.mark.parametrize("name", ["evil:Thing", "evil.py:Thing", "os:abort", "folder", "../folder"])
@pytest.mark.parametrize("command", ["decode", "view"])
def test_a_token_file_chooses_no_code(
    tiny_tokenizer: Tokenizer,
    name: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text('{"_class_name": "AutoencoderKLWan"}')
    tokens = tiny_tokenizer.encode(moving_square(5, 16, 16), tau=0.1)
    replace(tokens, recipe=replace(tokens.recipe, backbone=name)).save("x.inlay")
    assert main([command, "x.inlay", "out.mp4"]) == 4
    said = capsys.readouterr().err
    assert "does not choose what code runs" in said and "(--backbone)" in said and len(said.splitlines()) == 1
    assert not Path("ran").exists() and not Path("out.mp4").exists()
