# SPDX-License-Identifier: Apache-2.0
"""Videos and token files of visitors in, a page that shows masks, reconstructions and numbers out."""

from __future__ import annotations

from inlay.web.limits import Limits
from inlay.web.server import ServeConfig, serve

__all__ = ["Limits", "ServeConfig", "serve"]
