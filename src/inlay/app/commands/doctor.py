# SPDX-License-Identifier: Apache-2.0
"""Nothing in, the state of this installation out: versions, devices, weights, extras, fast paths."""

from __future__ import annotations

from inlay.app import options
from inlay.app.screen import Screen


def doctor(json: options.Json = False) -> None:
    """Say what is installed and found.

    Versions, extras, the device that would be used, weights, fast paths.
    """
    from inlay.app.examination import examination_rows, examine

    record = examine()
    Screen(json=json).show(record, examination_rows(record))
