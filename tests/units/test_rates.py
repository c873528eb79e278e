# SPDX-License-Identifier: Apache-2.0
"""Curves of rate and distortion: what equal quality costs, where curves do not meet, Bjontegaard's mean."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from inlay.errors import MissingError, UsageError
from inlay.research.studies.rates import Curve, bd_rate, times_the_bits

ANCHOR = Curve(bits=(0.02, 0.05, 0.1, 0.3), psnr=(22.0, 25.0, 28.0, 33.0))


def scaled(times: float, curve: Curve = ANCHOR) -> Curve:
    return Curve(bits=tuple(times * b for b in curve.bits), psnr=curve.psnr)


def test_a_curve_leaves_out_points_that_cost_more_and_are_no_better() -> None:
    points = [(0.3, 30.0), (0.1, 25.0), (0.2, 25.0), (0.25, 24.0), (0.1, 24.0)]
    assert Curve.of(points) == Curve(bits=(0.1, 0.3), psnr=(25.0, 30.0))
    with pytest.raises(UsageError, match="as many rates as qualities; got 1 and 2"):
        Curve(bits=(0.1,), psnr=(1.0, 2.0))


@pytest.mark.parametrize("psnr", [22.0, 23.7, 28.0, 31.4, 33.0])
def test_times_the_bits_of_a_curve_is_its_factor_wherever_both_are(psnr: float) -> None:
    own = times_the_bits(1.0, psnr, scaled(2.5)).times
    assert times_the_bits(1.0, psnr, ANCHOR).times / own == pytest.approx(2.5)


def test_between_points_the_log_of_the_rate_is_a_line() -> None:
    found = times_the_bits(0.1, 26.5, ANCHOR)
    assert found.kind == "" and found.times == pytest.approx(0.1 / math.sqrt(0.05 * 0.1))


def test_beside_a_curve_there_is_a_bound_and_its_end() -> None:
    below, above = times_the_bits(0.04, 20.0, ANCHOR), times_the_bits(0.6, 34.0, ANCHOR)
    assert (below.kind, below.times, below.nearest) == ("at least", 2.0, 22.0)
    assert (above.kind, above.times, above.nearest) == ("at most", 2.0, 33.0)


def test_bjontegaards_rate_of_scaled_curves_is_the_factor() -> None:
    pytest.importorskip("bjontegaard", reason="pip install bjontegaard")
    assert bd_rate(ANCHOR, ANCHOR) == pytest.approx(0)
    assert bd_rate(scaled(1.5), ANCHOR) == pytest.approx(0.5)
    assert bd_rate(scaled(0.5), ANCHOR) == pytest.approx(-0.5)
    narrow = Curve(bits=ANCHOR.bits[1:3], psnr=ANCHOR.psnr[1:3])  # two points, a part of the quality
    assert abs(bd_rate(narrow, ANCHOR) or 0) < 0.1


def test_bjontegaards_rate_is_nothing_where_curves_share_no_quality() -> None:
    pytest.importorskip("bjontegaard", reason="pip install bjontegaard")
    worse = Curve(bits=(0.02, 0.1), psnr=(10.0, 20.0))
    assert bd_rate(worse, ANCHOR) is None and bd_rate(ANCHOR, worse) is None
    assert bd_rate(Curve(bits=(0.1,), psnr=(25.0,)), ANCHOR) is None


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bjontegaard", None)
    with pytest.raises(MissingError, match=r"^bjontegaard is not installed; run: pip install "):
        bd_rate(ANCHOR, ANCHOR)


def test_studies_bring_neither_the_library_nor_pyav() -> None:
    code = "import sys, inlay.research.studies.catalogue; print({'bjontegaard', 'av', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
