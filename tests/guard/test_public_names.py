# SPDX-License-Identifier: Apache-2.0
"""The public names: few, all of them open, all of them documented."""

from __future__ import annotations

import inlay

PUBLIC = {
    "__version__", "Tokenizer", "open", "Video", "Tokens", "read_video", "write_video",
    "InlayError", "StreamDecoder", "StreamEncoder",
}  # fmt: skip


def test_the_set_of_public_names_is_a_decision() -> None:
    assert set(inlay.__all__) == PUBLIC
    assert set(dir(inlay)) >= PUBLIC


def test_each_public_name_opens_and_says_what_it_is() -> None:
    for name in PUBLIC - {"__version__"}:
        assert getattr(inlay, name).__doc__, f"inlay.{name} has no docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(inlay, "Tokeniser")
