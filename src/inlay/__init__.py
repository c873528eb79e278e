# SPDX-License-Identifier: Apache-2.0
"""Inlay: an adaptive video tokeniser. Keeps the latent cells that change, fills in the rest.

>>> import inlay
>>> inlay.__version__
'0.1.0'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_LAZY = {  # public name -> (module, name in it); imported on first use, so `import inlay` stays light
    "InlayError": ("inlay.errors", "InlayError"),
    "StreamDecoder": ("inlay.codec", "Decoder"),
    "StreamEncoder": ("inlay.codec", "Encoder"),
    "Tokenizer": ("inlay.tokenizer", "Tokenizer"),
    "Tokens": ("inlay.container.tokens", "Tokens"),
    "Video": ("inlay.video.frames", "Video"),
    "open": ("inlay.container", "open"),
    "read_video": ("inlay.video", "read_video"),
    "write_video": ("inlay.video", "write_video"),
}
_PACKAGES = ("caches", "codec", "container", "fill", "masking", "measure", "pack", "scale", "train", "video", "vlm")

__all__ = [
    "InlayError",
    "StreamDecoder",
    "StreamEncoder",
    "Tokenizer",
    "Tokens",
    "Video",
    "__version__",
    "open",
    "read_video",
    "write_video",
]

if TYPE_CHECKING:
    from inlay import caches as caches  # the packages, lazily too
    from inlay import codec as codec
    from inlay import container as container
    from inlay import fill as fill
    from inlay import masking as masking
    from inlay import measure as measure
    from inlay import pack as pack
    from inlay import scale as scale
    from inlay import train as train
    from inlay import video as video
    from inlay import vlm as vlm
    from inlay.codec import Decoder as StreamDecoder
    from inlay.codec import Encoder as StreamEncoder
    from inlay.container import open
    from inlay.container.tokens import Tokens
    from inlay.errors import InlayError
    from inlay.tokenizer import Tokenizer
    from inlay.video import read_video, write_video
    from inlay.video.frames import Video


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"inlay.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'inlay' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted((*__all__, *_PACKAGES))
