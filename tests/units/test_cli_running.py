# SPDX-License-Identifier: Apache-2.0
"""Freed memory that a command keeps."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PAGES = """
import resource, torch
from inlay.cli.running import reuse_memory
if {reuse}:
    reuse_memory()
for _ in range(20):  # 64 MB, more than glibc ever keeps by itself
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
NEW = 10 * 2**24 * 4 // 4096  # pages of ten such blocks


def pages(*, reuse: bool, **variables: str) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", PAGES.format(reuse=reuse)]
    done = subprocess.run(command, env=plain | variables, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator, which is left alone")
def test_large_blocks_are_used_again() -> None:
    given_back = pages(reuse=False)
    if given_back < NEW / 2:
        pytest.skip(f"large pages here: {given_back} new ones of {NEW}")
    assert pages(reuse=True) < NEW / 4
    assert pages(reuse=True, MALLOC_TRIM_THRESHOLD_="131072") > NEW / 2, "what the user has set stands"
