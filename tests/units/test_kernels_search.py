# SPDX-License-Identifier: Apache-2.0
"""The kernels that search a threshold against the plain search, to the bit, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from inlay.vlm import CRITERIA, last_kept_mask
from inlay.vlm.last_kept import ROUNDS, distances, ranks
from tests.triton_here import DEVICE, needs_triton
from tests.units.test_vlm import film


@needs_triton
@pytest.mark.parametrize("T,P", [(2, 1), (5, 4), (9, 33)])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_ranks_of_the_plain_search(criterion: str, T: int, P: int) -> None:
    from inlay.kernels import search_triton

    table_TSP = distances(film(T, P), CRITERIA[criterion])
    for count in {P + 1, P + (T - 1) * P // 3, T * P - 1}:
        got = search_triton.ranks(table_TSP.to(DEVICE), count, ROUNDS, taus=128)  # fewer programs to interpret
        assert torch.equal(got.cpu(), ranks(table_TSP, count)), count


@needs_triton
@pytest.mark.parametrize("seed", range(3))
def test_tables_whose_count_rises_with_tau_or_that_have_ties(seed: int) -> None:
    from inlay.kernels import search_triton

    g = torch.Generator().manual_seed(seed)
    for table_TSP in (torch.rand(8, 8, 6, generator=g), torch.randint(0, 3, (8, 8, 6), generator=g).float()):
        table_TSP[5, 2:4] = torch.finfo(torch.float32).max  # what could not be measured
        for count in (7, 22, 40):
            got = search_triton.ranks(table_TSP.to(DEVICE), count, ROUNDS, taus=32)
            assert torch.equal(got.cpu(), ranks(table_TSP, count)), count


@pytest.mark.gpu
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("T,P", [(16, 144), (33, 576), (64, 100)])
def test_a_gpu_keeps_what_the_plain_form_keeps_there(
    T: int, P: int, criterion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_TPD = film(T, P, 256).to("cuda", torch.bfloat16)
    for count in (P + 1, T * P // 4, T * P // 2, T * P - 1):
        fast = last_kept_mask(x_TPD, count, criterion=criterion)
        with monkeypatch.context() as patch:
            patch.setenv("INLAY_FAST", "0")
            plain = last_kept_mask(x_TPD, count, criterion=criterion)
        assert int(fast.sum()) == count and torch.equal(fast, plain)
