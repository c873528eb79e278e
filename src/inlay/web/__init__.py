# SPDX-License-Identifier: Apache-2.0
"""The web page: visitors drop in videos and token files, and see masks, reconstructions and numbers."""

from __future__ import annotations

from inlay.web.limits import Limits
from inlay.web.server import ServeConfig, running

__all__ = ["Limits", "ServeConfig", "running"]
