# SPDX-License-Identifier: Apache-2.0
"""Nothing in, the state of this installation out: versions, devices, weights, extras, fast paths."""

from __future__ import annotations

from inlay.cli import options
from inlay.cli.screen import Screen


def doctor(json: options.Json = False) -> None:
    """Say what is installed and found.

    Versions, extras, the device that would be used, weights, fast paths.
    """
    from inlay.cli.examination import examination_rows, examine

    record = examine()
    Screen(json=json).show(record, examination_rows(record))
