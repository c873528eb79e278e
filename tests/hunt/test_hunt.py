# SPDX-License-Identifier: Apache-2.0
"""A short hunt with a fixed seed finds nothing; and it would find something."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from inlay.container import TokenReader, to_bytes
from tests.hunt import targets
from tests.hunt.__main__ import Hunt, attempt
from tests.hunt.forge import Parts
from tests.hunt.targets import FILES, SEEDS, TARGETS


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("inlay.container.reader").setLevel(logging.ERROR)


def test_a_short_hunt_finds_nothing(tmp_path: Path) -> None:
    hunt = Hunt(seed=2026, folder=tmp_path)
    hunt.run(seconds=120, cases=3000)
    record = hunt.record("test", 1.0)
    assert record["findings"] == [] and record["cases"] == 3000
    for name, count in hunt.counts.items():
        assert count.cases == count.refused + count.read > 0, name
    assert hunt.counts["forged"].read and hunt.counts["forged"].refused


def test_a_case_is_made_again_by_seed_and_number(tmp_path: Path) -> None:
    for target in TARGETS:
        first, again = (attempt(7, target, 3, tmp_path).case for _ in range(2))
        assert first == again and first != attempt(7, target, 4, tmp_path).case


@pytest.mark.parametrize("seed", range(len(FILES)))
def test_parts_put_together_again_are_a_file(seed: int) -> None:
    data = to_bytes(SEEDS[seed])
    with TokenReader(Parts.of(data).pack()) as reader:
        assert reader.problems == [] and reader.inconsistencies() == [] and len(reader) == len(SEEDS[seed].spans)


def test_it_finds_a_crash_and_a_waste_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(rng: random.Random, folder: Path) -> targets.Outcome:
        raise ZeroDivisionError("as a defect would")

    monkeypatch.setitem(TARGETS, "header", crash)
    monkeypatch.setattr("tests.hunt.__main__.SLOWEST_SECONDS", 0.0)
    hunt = Hunt(seed=1, folder=tmp_path)
    hunt.try_one("header")
    hunt.try_one("damaged")
    assert [finding["target"] for finding in hunt.findings] == ["header", "damaged"]
    assert "ZeroDivisionError: as a defect would" in hunt.findings[0]["what"]
    assert hunt.findings[1]["again"] == "python -m tests.hunt --seed 1 --target damaged --case 0"
