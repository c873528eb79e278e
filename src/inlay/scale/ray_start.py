# SPDX-License-Identifier: Apache-2.0
"""How a job is to run in, a Ray to run it on out: begun here or reached by its address while the job is planned."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from inlay.errors import MissingError, UsageError, require
from inlay.scale.engine import RunConfig, cores, worker_count

STORE_BYTES = 200 << 20  # of the object store: shards are told by name, so little passes through it
ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_worker_niceness": "0",  # its default lets every other process of the machine go first
}


_ONE = threading.Lock()  # a process has one Ray at a time


class RayStart:
    """A thread that begins a Ray and ends it. It lives as long, because what it starts is made to die with it."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.error: Exception | None = None
        self._begun, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it runs; raises what kept it from running."""
        require("ray.data", extra="scale").DataContext.get_current()  # loads for a second, while Ray begins
        self._begun.wait()
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """A job that fails while Ray still begins need not wait for it: it ends by itself."""
        self._over.set()
        if self._begun.is_set():
            self._thread.join()

    def _live(self) -> None:
        with _ONE:
            try:
                ray = require("ray", extra="scale")
                ours = not ray.is_initialized()
                if ours:
                    _begin(ray, self.run)
            except Exception as error:
                self.error = error
                return
            finally:
                self._begun.set()
            self._over.wait()
            if ours:
                ray.shutdown()


@contextmanager
def ray_ahead(run: RunConfig, device: str, threads: int) -> Iterator[Callable[[], None]]:
    """Begin a Ray, or reach one, while the job is still being planned."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # reports to nobody
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    start = RayStart(run)
    try:
        yield start.wait
    finally:
        start.end()


def _begin(ray: Any, run: RunConfig) -> None:
    """Quiet, and without dashboard."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    here: dict[str, Any] = {
        "address": "local",  # not that of RAY_ADDRESS: without --address a job stays here
        "num_cpus": max(cores(), worker_count(run, "cpu")),
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
    }
    try:
        ray.init(**({"address": run.address} if run.address is not None else here), **quiet)
    except ConnectionError as error:
        raise UsageError(
            f"there is no Ray cluster at {run.address or 'this machine'}; start one (ray start --head)"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise MissingError(f"Ray does not start: {(str(error).strip().splitlines() or ['?'])[0]}") from error
