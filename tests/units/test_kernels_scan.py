# SPDX-License-Identifier: Apache-2.0
"""The mask kernel against the plain scan: the same decisions bit for bit, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch
from torch import Tensor

from inlay.masking import CRITERIA, REFERENCES, MaskConfig, keep_mask, scan
from inlay.masking.criteria import tree_sum
from inlay.masking.scan import plain_scan
from tests.triton_here import DEVICE, needs_triton

TAUS = {"latent-l1": 0.8, "latent-l2": 1.0, "latent-cosine": 0.1}


def walk(*shape: int, channels_last: bool = False) -> Tensor:
    z = torch.randn(shape).cumsum(2).to(DEVICE)
    return z.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3) if channels_last else z


def both(z: Tensor, config: MaskConfig, start: Tensor | None = None) -> tuple[tuple[Tensor, Tensor], ...]:
    from inlay.kernels.scan import fused_scan

    fast = fused_scan(z, start, criterion=config.criterion, reference=config.reference, tau=config.tau)
    return fast, plain_scan(z, config, start)


def assert_same(z: Tensor, config: MaskConfig, start: Tensor | None = None) -> Tensor:
    (keep, end), (want, state) = both(z, config, start)
    assert torch.equal(keep, want)
    assert torch.equal(end.nan_to_num(7.0), state.nan_to_num(7.0))
    return keep


@needs_triton
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("criterion", TAUS)
@pytest.mark.parametrize(
    ("shape", "last"),
    [((2, 16, 9, 5, 7), True), ((1, 16, 4, 3, 9), False), ((1, 3, 4, 3, 3), False), ((1, 48, 3, 4, 5), True),
     ((3, 4, 1, 2, 9), False), ((1, 1, 4, 2, 2), False), ((1, 12, 3, 6, 6), False), ((2, 48, 5, 6, 7), False),
     ((1, 32, 4, 8, 8), False), ((1, 130, 12, 3, 7), False)],
)  # fmt: skip
def test_decisions_are_the_plain_ones(shape: tuple[int, ...], last: bool, criterion: str, reference: str) -> None:
    z = walk(*shape, channels_last=last)
    keep = assert_same(z, MaskConfig(tau=TAUS[criterion], criterion=criterion, reference=reference))
    assert keep[:, 0].all() and (shape[2] == 1 or shape[1] < 4 or not keep.all())


@needs_triton
@pytest.mark.parametrize("criterion", TAUS)
def test_the_state_goes_on(criterion: str) -> None:
    z, config = walk(2, 8, 7, 4, 5), MaskConfig(tau=TAUS[criterion], criterion=criterion)
    whole = assert_same(z, config)
    start = plain_scan(z[:, :, :3], config)[1]
    assert torch.equal(assert_same(z[:, :, 3:], config, start), whole[:, 3:])


@needs_triton
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, beneath the interpreter
@pytest.mark.parametrize("channels", [6, 48])
@pytest.mark.parametrize("criterion", TAUS)
def test_ties_nan_and_infinity_fall_alike(criterion: str, channels: int) -> None:
    z = (torch.randint(-3, 4, (2, channels, 8, 5, 5)) / 8).to(DEVICE)
    for tau in (0.0, 1 / 8, 0.25):  # multiples of an eighth meet these thresholds exactly
        assert_same(z, MaskConfig(tau=tau, criterion=criterion))
    z[0, 1, 2, 0, 0] = torch.nan
    z[0, 0, 0, 1, 1] = torch.nan
    z[1, 2, 3, 2, 2] = torch.inf
    keep = assert_same(z, MaskConfig(tau=0.25, criterion=criterion))
    assert not keep[0, 2, 0, 0], "a cell that is no number is not kept"


@needs_triton
@pytest.mark.parametrize("channels", [16, 48])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, channels: int) -> None:
    if DEVICE == "cpu" and dtype is torch.bfloat16:
        pytest.skip("the interpreter has no bfloat16 of its own")
    z = walk(1, channels, 5, 6, 6).to(dtype)
    keep, want = assert_same(z, MaskConfig(tau=0.9)), plain_scan(z.float(), MaskConfig(tau=0.9))[0]
    assert torch.equal(keep, want)


@needs_triton
def test_a_grid_cut_out_of_a_larger_one() -> None:
    assert_same(walk(1, 8, 4, 9, 9)[..., 1:6, 2:7], MaskConfig(tau=0.8))


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [16, 48])
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("reference", REFERENCES)
def test_it_is_taken_on_a_gpu_and_can_be_turned_off(
    criterion: str, reference: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inlay.kernels import may_run
    from inlay.kernels.scan import knows

    z = torch.randn(4, channels, 9, 32, 32, device="cuda").cumsum(2)
    config = MaskConfig(tau=0.8 if criterion != "latent-cosine" else 0.1, criterion=criterion, reference=reference)
    assert may_run("scan", tensors=(z,)) and knows(criterion, reference)
    fast = scan(z, config)
    monkeypatch.setenv("INLAY_FAST", "0")
    assert not may_run("scan", tensors=(z,))
    slow = scan(z, config)
    assert torch.equal(fast[0], slow[0]) and torch.equal(fast[1], slow[1])
    cpu = scan(z.cpu(), config)
    assert torch.equal(fast[0].cpu(), cpu[0]), "a CPU decides as a GPU does"


@pytest.mark.slow
@pytest.mark.parametrize("criterion", TAUS)
def test_compiled_decides_as_eager(criterion: str) -> None:
    z, config = walk(2, 12, 4, 8, 8), MaskConfig(tau=TAUS[criterion], criterion=criterion)
    if DEVICE == "cpu" and shutil.which("g++") is None:
        pytest.skip("g++ is not installed, and torch.compile needs it on a CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        keep = torch.compile(lambda z: plain_scan(z, config)[0], dynamic=False)(z)
    assert torch.equal(keep, plain_scan(z, config)[0])


def test_it_knows_what_masking_knows() -> None:
    from inlay.kernels.scan import knows

    assert all(knows(criterion, reference) for criterion in CRITERIA for reference in REFERENCES)
    assert not knows("latent-l3", "last-kept") and not knows("latent-l1", "next")


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 16, 48])
def test_the_tree_adds_every_channel_once(channels: int) -> None:
    x = torch.randint(-9, 9, (2, channels, 3, 3)).float()
    assert torch.equal(tree_sum(x), x.sum(1))


def test_batch_and_layout_change_no_decision() -> None:
    z = torch.randn(3, 16, 9, 6, 7).cumsum(2)
    config = MaskConfig(tau=0.8)
    together = keep_mask(z, config)
    last = z.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3)
    assert torch.equal(keep_mask(last, config), together)
    for i in range(3):
        assert torch.equal(keep_mask(z[i : i + 1], config)[0], together[i])
