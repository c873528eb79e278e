# SPDX-License-Identifier: Apache-2.0
"""LIT's quick forms against its plain one: window by window on a CPU, replayed from a graph on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inlay.fill import Lit, LitConfig, hold, plus
from inlay.fill.lit import WindowBlock, rope_tables
from inlay.kernels import windows
from inlay.kernels.rule import NEEDS
from inlay.kernels.windows import stretches
from tests.triton_here import DEVICE, needs_triton

CONFIGS = {
    "plus": LitConfig(kind="plus", channels=4, width=64, heads=2, blocks=2, window=4, grid=64),
    "paper": LitConfig(kind="paper", channels=4, width=48, heads=2, blocks=2, grid=64),
}


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the library rounds float32 to 10 bits within convolutions unless told not to."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def made(config: LitConfig) -> Lit:
    torch.manual_seed(0)
    lit = Lit.build(config).eval().requires_grad_(False)
    for p in lit.parameters():
        p.add_(0.05 * torch.randn_like(p))  # so that the zero-initialised output speaks too
    return lit


def masked(B: int, C: int, T: int, H: int, W: int) -> tuple[Tensor, Tensor]:
    z, keep = torch.randn(B, C, T, H, W), torch.rand(B, T, H, W) < 0.4
    keep[:, 0] = True
    return z, keep


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 5, 9, 14), (1, 2, 3, 21), (1, 1, 1, 1), (1, 9, 6, 4)])
def test_the_quick_form_is_the_plain_one(
    kind: str, shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lit, (z, keep) = made(CONFIGS[kind]), masked(shape[0], 4, *shape[1:])
    with torch.inference_mode():
        rough = lit(z, keep, 0.3)
        for bits in ("vnni", "avx512_bf16"):
            monkeypatch.setitem(NEEDS, bits, (lambda: False, "not here"))
        quick = lit(z, keep, 0.3)
        assert (rough - quick).norm() <= 0.03 * (quick - hold(z, keep)).norm(), "8 and 16 bits, where this CPU has them"
        monkeypatch.setenv("INLAY_FAST", "0")
        torch.testing.assert_close(quick, lit(z, keep, 0.3), rtol=1e-4, atol=1e-5)


def test_gradients_take_the_plain_form() -> None:
    lit, (z, keep) = made(CONFIGS["plus"]).requires_grad_(True), masked(1, 4, 3, 9, 9)
    lit(z, keep, 0.3).sum().backward()
    assert all(p.grad is not None for p in lit.blocks.parameters())


@pytest.mark.parametrize(
    ("width", "heads", "want"), [(256, 4, True), (64, 2, True), (192, 8, False), (64, 4, False), (256, 1, True)]
)
def test_kernels_take_powers_of_two(width: int, heads: int, want: bool) -> None:
    from inlay.kernels.lit import fits

    assert fits(width, heads) == want


def test_stretches_hold_every_cell_once() -> None:
    for size, window, offset in ((32, 8, 0), (32, 8, 4), (5, 8, 4), (13, 4, 2), (1, 8, 0)):
        found = stretches(size, window, offset)
        assert [i for s in found for i in range(size)[s.cells]] == list(range(size))
        for s in found:
            own = torch.arange(size)[s.cells]
            read = own if s.reads is None else own[s.reads]
            assert len(read) == window and torch.equal(read[s.places], own)


def some_dropped(dropped: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    z, keep = torch.randn(1, 4, 3, 30, 26), torch.ones(1, 3, 30, 26, dtype=torch.bool)
    for y, x in dropped:
        keep[0, 1:, y, x] = False
    return z, keep


@pytest.mark.parametrize("dropped", [[(0, 0)], [(15, 13)], [(29, 25), (2, 20)], [(7, 7), (8, 8)]])
def test_only_windows_that_dropped_cells_depend_on_are_computed(
    dropped: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same to the bit as with all windows, in fewer of them."""
    lit, (z, keep) = made(CONFIGS["plus"]), some_dropped(dropped)
    counted: list[int] = []
    attend = windows.attend
    monkeypatch.setattr(windows, "attend", lambda *args: counted.append(1) or attend(*args))  # type: ignore[func-returns-value]
    with torch.inference_mode():
        few = lit(z, keep, 0.3)
        computed = len(counted)
        monkeypatch.setattr(windows, "asked_of", lambda blocks, wanted: [None] * len(blocks))
        whole = lit(z, keep, 0.3)
    assert 0 < computed < len(counted) - computed
    assert torch.equal(few, whole)
    assert not torch.equal(few, hold(z, keep)), "something was filled in"


def test_nothing_is_computed_where_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    lit, (z, keep) = made(CONFIGS["plus"]), some_dropped([])
    monkeypatch.setattr(lit, "run_blocks", lambda *args: pytest.fail("the network ran"))
    with torch.inference_mode():
        assert torch.equal(lit(z, keep, 0.3), z)


def test_tiles_without_dropped_cells_are_left_out() -> None:
    lit, (z, keep) = made(replace(CONFIGS["plus"], grid=16)), some_dropped([(1, 1)])
    grids: list[tuple[int, ...]] = []
    lit.in_proj.register_forward_hook(lambda module, args, out: grids.append(args[0].shape))
    with torch.inference_mode():
        filled = lit(z, keep, 0.3)
    assert len(grids) == 1, "of 12 tiles"
    assert torch.equal(torch.where(keep[:, None], filled, 0), torch.where(keep[:, None], z, 0))


@needs_triton
@pytest.mark.parametrize(("size", "offset"), [((5, 4), 0), ((5, 4), 2), ((1, 3), 0)])
def test_window_attention_kernel(size: tuple[int, int], offset: int) -> None:
    from inlay.kernels.lit_triton import attention

    block = WindowBlock(LitConfig(channels=4, width=64, heads=2, window=4), shifted=bool(offset))
    qkv = torch.randn(1, 2, *size, 192, device=DEVICE)
    rope = rope_tables((2, 4, 4), (8, 12, 12), qkv)
    got = attention(qkv, rope, heads=2, window=4, offset=offset, blocks=(16, 16, 4, 1))
    torch.testing.assert_close(got, block.attend_windows(qkv, rope), rtol=1e-4, atol=1e-5)


@needs_triton
@pytest.mark.parametrize("pending", [0, 1, 2])
def test_norm_kernels(pending: int) -> None:
    from inlay.kernels.lit_triton import layer_norm, near_norm

    block, h = made(CONFIGS["plus"]).to(DEVICE).blocks[0], torch.randn(1, 2, 3, 5, 64, device=DEVICE)
    waiting = [torch.randn(64, device=DEVICE) for _ in range(pending)]
    whole = h + sum(waiting) if waiting else h
    near = block.near(whole.flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).view_as(h)
    new, normed = near_norm(h, waiting, block.near, block.norm1)
    torch.testing.assert_close(new, whole + near, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(normed, block.norm1(whole + near), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer_norm(h, waiting, block.norm2), block.norm2(whole), rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize("shape", [(2, 3, 5, 4, 3), (1, 4, 1, 2, 2), (1, 16, 9, 3, 5)])
@pytest.mark.parametrize("last", [True, False])
def test_both_ends_by_kernels(shape: tuple[int, ...], last: bool) -> None:
    from inlay.kernels import lit_ends_triton as kernels

    B, C = shape[:2]
    lit = made(LitConfig(channels=C, width=64, heads=2, blocks=1, window=4)).to(DEVICE)
    lit.set_statistics(tuple(torch.randn(C).tolist()), tuple((torch.rand(C) + 0.5).tolist()))
    z, keep = (t.to(DEVICE) for t in masked(*shape))
    z = z.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3) if last else z
    keep[:, 0] = torch.rand(keep[:, 0].shape) < 0.5  # a chunk that goes on may begin with cells never kept
    tau, change = torch.rand(B, device=DEVICE), torch.randn(*keep.shape, C, device=DEVICE)
    held = hold(z, keep)
    got = kernels.features(z, keep, tau, lit.latent_mean, lit.latent_std)
    torch.testing.assert_close(got, lit.features(z, held, keep, tau), rtol=1e-4, atol=1e-5)
    want = held + change.permute(0, 4, 1, 2, 3) * lit.latent_std.view(1, -1, 1, 1, 1)
    got = kernels.finish(z, keep, change, lit.latent_std)
    torch.testing.assert_close(got, torch.where(keep[:, None], z, want), rtol=1e-4, atol=1e-5)


@needs_triton
@pytest.mark.slow
def test_whole_blocks_by_kernels() -> None:
    from inlay.kernels.lit import window_blocks

    lit, h = made(CONFIGS["plus"]).to(DEVICE), torch.randn(1, 2, 5, 6, 64, device=DEVICE)
    rope = rope_tables((2, 4, 4), (8, 12, 12), h)
    want = h
    with torch.no_grad():
        for block in lit.blocks:
            want = block.whole(want, rope)
        got = window_blocks(lit.blocks, lit.norm_out, h, rope)
    loose = 1e-4 if DEVICE == "cpu" else 1e-2  # the epilogue's gelu on CUDA
    torch.testing.assert_close(got, lit.norm_out(want), rtol=loose, atol=loose)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 9, 32, 32), (8, 9, 32, 32), (2, 5, 30, 53)])
def test_kernels_are_taken_in_bfloat16_and_stay_within_its_rounding(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lit, (z, keep) = made(plus()).cuda(), (t.cuda() for t in masked(shape[0], 16, *shape[1:]))
    half = made(plus()).to("cuda", torch.bfloat16)
    with torch.inference_mode():
        exact = lit(z, keep, 0.3)
        fast = half(z.bfloat16(), keep, 0.3).float()
        assert half.tables, "the kernels have run"
        monkeypatch.setenv("INLAY_FAST", "0")
        slow = half(z.bfloat16(), keep, 0.3).float()
    change = (exact - hold(z, keep)).norm()
    assert (fast - exact).norm() < 1.5 * (slow - exact).norm() + 1e-3 * change, (
        "no further off than torch's own bfloat16"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replayed_lit_is_the_plain_one(batch: int, dtype: torch.dtype) -> None:
    from inlay.kernels import Replay

    lit = made(plus()).to("cuda", dtype)
    replay = Replay(lambda z, keep, tau: lit(z, keep, tau))
    with torch.inference_mode():
        for round_ in range(4):  # plain, captured, replayed twice with other numbers
            z, keep = (t.cuda() for t in masked(batch, 16, 9, 32, 32))
            z, tau = z.to(dtype), torch.full((batch,), 0.1 * (round_ + 1), device="cuda")
            assert torch.equal(replay(z, keep, tau), lit(z, keep, tau))
    assert not replay.refused and [r for r in replay.recordings.values() if r is not None]
