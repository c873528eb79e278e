# SPDX-License-Identifier: Apache-2.0
"""Reading ahead in a thread: the same items in order, errors where they belong, and nothing left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from inlay.video.ahead import Ahead


def counted(stop: int, seen: list[int], *, ends: list[str] | None = None) -> Iterator[int]:
    try:
        for n in range(stop):
            seen.append(n)
            yield n
    finally:
        if ends is not None:
            ends.append(threading.current_thread().name)


def test_the_same_items_in_order() -> None:
    with Ahead(counted(100, []), most=3) as ahead:
        assert list(ahead) == list(range(100))
        assert list(ahead) == []


def test_no_further_ahead_than_asked_for() -> None:
    seen: list[int] = []
    with Ahead(counted(100, seen), most=3) as ahead:
        assert next(ahead) == 0
        time.sleep(0.1)
        assert len(seen) <= 1 + 3 + 1, "one is taken, three wait, one waits for room"


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_error_comes_after_what_was_before_it(error: BaseException) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise error

    got = []
    with Ahead(items(), most=2) as ahead, pytest.raises(type(error)):
        for item in ahead:
            got.append(item)
    assert got == list(range(5)) and list(ahead) == []


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_stopped_half_way_it_closes_what_it_reads_in_its_own_thread(taken: int) -> None:
    ends: list[str] = []
    ahead = Ahead(counted(100, [], ends=ends), most=2, name="reader")
    for _ in range(taken):
        next(ahead)
    ahead.stop()
    ahead.stop()
    assert ends == ["reader"] and list(ahead) == []
    assert "reader" not in {thread.name for thread in threading.enumerate()}
