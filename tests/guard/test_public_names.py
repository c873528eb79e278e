# SPDX-License-Identifier: Apache-2.0
"""The public names: few, all of them open, all of them documented."""

from __future__ import annotations

import subprocess
import sys

import pytest

import inlay

PUBLIC = {
    "__version__", "Tokenizer", "open", "Video", "Tokens", "read_video", "write_video",
    "InlayError", "StreamDecoder", "StreamEncoder",
}  # fmt: skip
PACKAGES = {  # reachable from `import inlay` alone, and something that is found there
    "caches": "PackedCache",
    "codec": "Encoder",
    "container": "TokenReader",
    "fill": "Lit",
    "masking": "keep_mask",
    "measure": "compare",
    "pack": "pack",
    "scale": "TokenDataset",
    "train": "fit",
    "video": "open_video",
    "vlm": "compute_retention_mask",
}


def test_the_set_of_public_names_is_a_decision() -> None:
    assert set(inlay.__all__) == PUBLIC
    assert set(dir(inlay)) >= PUBLIC | set(PACKAGES)


def test_each_public_name_opens_and_says_what_it_is() -> None:
    for name in PUBLIC - {"__version__"}:
        assert getattr(inlay, name).__doc__, f"inlay.{name} has no docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(inlay, "Tokeniser")


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_reached_without_an_import_of_their_own(package: str) -> None:
    """In a process of its own: here somebody may have imported it before."""
    code = (
        "import sys, inlay; assert not [m for m in sys.modules if m.startswith('inlay.')], 'loaded before it is used';"
        f" assert inlay.{package}.__name__ == 'inlay.{package}'; inlay.{package}.{PACKAGES[package]}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
