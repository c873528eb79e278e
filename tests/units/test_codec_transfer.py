# SPDX-License-Identifier: Apache-2.0
"""Tensors on their way from a GPU: their memory is used again, and never by two at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from inlay.codec.transfer import PINNED, Spare, Transfer, upload_rows


def test_spare_memory_is_used_again_by_one_alone() -> None:
    spare = Spare(torch.empty_like)
    like = torch.zeros(3, 4)
    first, second = spare.take(like), spare.take(like)
    assert first.data_ptr() != second.data_ptr()
    spare.give(first)
    assert spare.take(like) is first and spare.take(like) is not first


@pytest.mark.parametrize("like", [torch.zeros(4, 3), torch.zeros(3, 4, dtype=torch.int32), torch.zeros(12)])
def test_spare_memory_is_for_what_is_alike(like: Tensor) -> None:
    spare = Spare(torch.empty_like)
    spare.give(torch.zeros(3, 4))
    found = spare.take(like)
    assert found.shape == like.shape and found.dtype == like.dtype


def test_what_was_given_back_first_goes_where_there_is_too_much() -> None:
    spare = Spare(torch.empty_like, most=3 * 16)
    tensors = [torch.zeros(4) for _ in range(5)]
    spare.give(*tensors)
    found = [spare.take(tensors[0]).data_ptr() for _ in range(3)]
    assert found == [tensor.data_ptr() for tensor in tensors[2:]]
    assert not spare._tensors
    spare.give(torch.zeros(13))
    assert not spare._tensors, "what is larger than all that may wait does not"


def test_threads_never_share_memory() -> None:
    spare, like = Spare(torch.empty_like), torch.zeros(64, dtype=torch.int64)

    def work(number: int) -> bool:
        own = spare.take(like).fill_(number)
        kept = bool((own == number).all())
        spare.give(own)
        return kept

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(2000)))


def test_what_was_lent_is_gone() -> None:
    transfer = Transfer(torch.arange(3), torch.ones(2))
    with transfer.lent() as (a, b):
        assert (a.tolist(), b.tolist()) == ([0, 1, 2], [1, 1])
    with pytest.raises(AssertionError), transfer.lent():
        pass


def test_what_is_on_the_cpu_is_not_taken_for_pinned_memory() -> None:
    before, tensor = list(PINNED._tensors), torch.arange(3)
    assert Transfer(tensor).arrived()[0] is tensor
    with Transfer(tensor).lent() as (lent,):
        assert lent is tensor
    assert [t.data_ptr() for t in PINNED._tensors] == [t.data_ptr() for t in before]


def rows_of(*lengths: int, count: int) -> list[list[Tensor]]:
    """Rows of random pieces, of these lengths in a row of its own order each."""
    g = torch.Generator().manual_seed(1)
    orders = [lengths if n % 2 else lengths[::-1] for n in range(count)]
    return [[torch.randint(0, 256, (n, 5, 4, 3), dtype=torch.uint8, generator=g) for n in order] for order in orders]


@pytest.mark.parametrize("lengths", [(9,), (4, 5), (1, 1, 7)])
@pytest.mark.parametrize("count", [1, 3])
def test_rows_are_joined_from_their_pieces(lengths: tuple[int, ...], count: int) -> None:
    rows = rows_of(*lengths, count=count)
    found = upload_rows(rows, torch.device("cpu"))
    assert found.shape == (count, 9, 5, 4, 3) and found.equal(torch.stack([torch.cat(row) for row in rows]))


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["host", "pinned", "device"])
def test_rows_come_to_a_gpu_from_anywhere_while_it_works(place: str) -> None:
    device = torch.device("cuda")
    put = {"host": lambda t: t, "pinned": Tensor.pin_memory, "device": Tensor.cuda}[place]
    for _ in range(20):  # memory is used again
        rows = rows_of(4, 5, 40, count=8)
        busy = torch.randn(2048, 2048, device=device)
        for _ in range(10):
            busy = busy @ busy
        found = upload_rows([[put(piece) for piece in row] for row in rows], device)
        assert found.cpu().equal(torch.stack([torch.cat(row) for row in rows]))


@pytest.mark.gpu
def test_many_on_their_way_and_memory_that_is_used_again() -> None:
    def sent(number: int) -> Transfer:
        return Transfer(torch.full((7, 50, 3), float(number), device="cuda"), torch.tensor([number], device="cuda"))

    PINNED._tensors.clear()
    kept = sent(-1).arrived()  # for good
    places: set[int] = set()
    for number in range(50):
        with torch.inference_mode(number % 2 == 0):
            ahead = [sent(3 * number + i) for i in range(3)]
            for i, transfer in enumerate(ahead):
                with transfer.lent() as (values, said):
                    assert int(said) == 3 * number + i and bool((values == said).all())
                    places.add(values.data_ptr())
    assert len(places) == 3 and kept[0].data_ptr() not in places
    assert bool((kept[0] == -1).all()) and kept[0].is_pinned() and kept[1].tolist() == [-1]
