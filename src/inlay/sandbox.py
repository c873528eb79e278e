# SPDX-License-Identifier: Apache-2.0
"""Run a command on a stranger's file in a process of its own, with an end to its memory and its time.

`inlay decode --untrusted` decodes so, and the page reads uploads under the same limits (`confine`). What goes wrong
there, a crash too, stays there. Memory is limited on Linux; elsewhere only time is.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from inlay.errors import OUT_OF_MEMORY, TokenFileError

MB = 1 << 20
GRACE_SECONDS = 5.0  # between being asked to end and being ended


def run(
    command: Sequence[str], *, memory_mb: int, seconds: float, quiet: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `inlay COMMAND...` in a child that may take so much; raises a `TokenFileError` where it wants more.

    Args:
        memory_mb: memory beyond what Python and torch take before they have read anything.
        quiet: catch what it prints, in place of passing it on.
    """
    pipe = subprocess.PIPE if quiet else None
    args = [sys.executable, "-m", "inlay.sandbox", str(memory_mb), *command]
    with subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            _end(child)
            raise TokenFileError(
                f"the file was not done within {seconds:g} s, the limit for untrusted files; what it made was removed",
                about="untrusted",
            ) from error
        except BaseException:
            _end(child)
            raise
    if child.returncode in (OUT_OF_MEMORY, -9):
        raise TokenFileError(
            f"the file asked for more than {memory_mb:,} MB, the limit for untrusted files", about="untrusted"
        )
    if child.returncode < 0:
        raise TokenFileError(f"the process that read the file was ended by signal {-child.returncode}")
    return subprocess.CompletedProcess(args, child.returncode, out, err)


def _end(child: subprocess.Popen[str]) -> None:
    """Ask first, so that it removes what it has begun; then insist."""
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def confine(memory_mb: int) -> None:
    """Take no more memory than this beyond what this process has now, and leave no core behind."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return
    import resource

    (has_kb,) = (int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData:"))
    most = (has_kb << 10) + memory_mb * MB
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Run the command line under the limit given first."""
    import torch  # noqa: F401  # what it takes is not the file's doing

    memory_mb, *command = sys.argv[1:]
    confine(int(memory_mb))
    sys.argv = ["inlay", *command]
    runpy.run_module("inlay", run_name="__main__")


if __name__ == "__main__":
    main()
