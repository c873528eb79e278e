# SPDX-License-Identifier: Apache-2.0
"""What every criterion promises."""

from __future__ import annotations

import pytest
import torch

from inlay.masking import CRITERIA


@pytest.mark.parametrize("name", CRITERIA)
class TestCriterion:
    def test_is_a_distance(self, name: str) -> None:
        a, b = torch.randn(2, 3, 16, 4, 5)
        d = CRITERIA[name](a, b)
        assert d.shape == (3, 4, 5)
        assert d.dtype == torch.float32
        assert (d >= 0).all()
        assert not CRITERIA[name](a, a).any()
        torch.testing.assert_close(d, CRITERIA[name](b, a))

    def test_grows_with_the_change(self, name: str) -> None:
        a, step = torch.randn(2, 1, 16, 4, 4)
        near, far = CRITERIA[name](a, a + 0.1 * step), CRITERIA[name](a, a + 0.5 * step)
        assert (far > near).all()

    def test_handles_zero_cells(self, name: str) -> None:
        zero, one = torch.zeros(1, 8, 2, 2), torch.ones(1, 8, 2, 2)
        assert not CRITERIA[name](zero, zero).any()
        assert (CRITERIA[name](zero, one) > 0).all()

    def test_half_precision_in_float32_out(self, name: str) -> None:
        a, b = torch.randn(2, 1, 16, 3, 3).bfloat16()
        torch.testing.assert_close(CRITERIA[name](a, b), CRITERIA[name](a.float(), b.float()), rtol=0, atol=0)
