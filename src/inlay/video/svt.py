# SPDX-License-Identifier: Apache-2.0
"""SVT-AV1 without its side effects, for whoever encodes AV1."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """SVT-AV1 tells its settings on standard error unless the environment says otherwise. For root it also gives the
    thread that calls it real-time priority and leaves it there: all that thread starts later would starve the machine.
    """
    before = os.environ.get("SVT_LOG")
    os.environ["SVT_LOG"] = before or "1"  # errors only
    scheduled = (os.sched_getscheduler(0), os.sched_getparam(0)) if sys.platform == "linux" else None
    try:
        yield
    finally:
        if scheduled is not None:
            os.sched_setscheduler(0, *scheduled)
        if before is None:
            del os.environ["SVT_LOG"]
