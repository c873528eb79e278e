# SPDX-License-Identifier: Apache-2.0
"""What holds while any command runs: the number of threads, and with --verbose what it says of its work."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from inlay.errors import ConfigError, UsageError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt
KEPT_BYTES = 2**30  # of freed memory, for the next time it is asked for
MOST_THREADS = 64  # or as many as there are cores; far more than these bring a thread pool down
log = logging.getLogger("inlay")


@contextmanager
def running(name: str, *, threads: int | None, quiet: bool, verbose: bool) -> Iterator[None]:
    """Run a command with so many threads, and say what it does if that is wanted; afterwards all is as before."""
    if quiet and verbose:
        raise UsageError("a command cannot say more and nothing; choose one", about=("quiet", "verbose"))
    with nullcontext() if threads is None else _limited(threads), _telling(name) if verbose else nullcontext():
        yield


def reuse_memory() -> None:
    """Let this process keep large blocks that are freed, up to a gigabyte, for as long as it lives.

    glibc takes blocks above 32 MB from the system and gives them back at once, so that every page of every activation
    is cleared anew: a fifth of the time that `inlay decode` takes for 720p. Left alone where there is another
    allocator, or where the user has set glibc's own variables.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


@contextmanager
def _limited(threads: int) -> Iterator[None]:
    most = max(MOST_THREADS, os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise ConfigError(f"threads are counted from 1 to {most}; got {threads}", about="threads")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Send what the library and the commands log to stderr, between a line on the machine and one on the cost."""
    from inlay.origin import version_text

    handler, level, start = logging.StreamHandler(sys.stderr), log.level, time.perf_counter()
    handler.setFormatter(logging.Formatter("inlay: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        log.info("%s, Python %s, %s", version_text(), platform.python_version(), platform.platform())
        yield
    finally:
        log.info("%s took %.1f s%s", name, time.perf_counter() - start, _memory())
        log.removeHandler(handler)
        log.setLevel(level)


def _memory() -> str:
    try:
        import resource
    except ImportError:  # Windows has none
        return ""
    unit = 1 if sys.platform == "darwin" else 1024
    return f" and at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6:,.0f} MB of memory"
