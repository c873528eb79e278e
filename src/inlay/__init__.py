# SPDX-License-Identifier: Apache-2.0
"""Inlay: adaptive video tokens. Keeps the latent cells that change, inlays the rest.

>>> import inlay
>>> inlay.__version__
'0.1.0'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_DOORS = {  # public name -> the module that holds it; opened on first use, so `import inlay` stays light
    "Tokenizer": "inlay.tokenizer",
    "open": "inlay.container",
    "Video": "inlay.video.frames",
    "Tokens": "inlay.container.tokens",
    "read_video": "inlay.video",
    "write_video": "inlay.video",
    "InlayError": "inlay.errors",
}

__all__ = [
    "InlayError",
    "Tokenizer",
    "Tokens",
    "Video",
    "__version__",
    "open",
    "read_video",
    "write_video",
]

if TYPE_CHECKING:
    from inlay.container import open
    from inlay.container.tokens import Tokens
    from inlay.errors import InlayError
    from inlay.tokenizer import Tokenizer
    from inlay.video import read_video, write_video
    from inlay.video.frames import Video


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'inlay' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
