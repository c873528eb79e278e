# SPDX-License-Identifier: Apache-2.0
"""What can stop a training run that was asked for correctly."""

from __future__ import annotations

from inlay.errors import InlayError


class TrainError(InlayError):
    """A run that cannot go on: the loss is not a number, the disk is full, the data are too short."""
