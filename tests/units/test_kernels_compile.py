# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels are compiled for a Hopper GPU, whether or not one is at hand."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]
HOPPER = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

def compiled(kernel, sizes, constants, **options):
    names = kernel.arg_names
    kinds = {n: sizes.get(n, "*bf16") if n.endswith("_ptr") else sizes.get(n, "i32") for n in names}
    kinds |= dict.fromkeys(constants, "constexpr")
    chosen = {(names.index(n),): value for n, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if kinds[n] not in ("fp32", "constexpr")}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=chosen, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
"""
SCAN = """
from inlay.kernels.scan_triton import scan_kernel
sizes = {"keep_ptr": "*i8", "flag_ptr": "*i32", "tau": "fp32"}
kernels = (0, False, False), (1, True, False), (2, True, False), (2, False, True)  # criterion, guess, again
for code, guess, again in kernels:
    for last in (True, False):
        shape = dict(C=16, T=9, CODE=code, PREVIOUS=False, STARTED=False, GUESS=guess, AGAIN=again)
        shape |= dict(N=16, LEVELS=4, EVEN=True, TOGETHER=0 if last else 1 if again else 2, STAGES=1)
        shape |= dict(P=64 if not last else 32 if code == 0 else 16)
        shape |= dict.fromkeys(("z_p", "start_p", "end_p"), 16 if last else 1)
        shape |= dict.fromkeys(("z_c", "start_c", "end_c"), 1) if last else {}
        found = compiled(scan_kernel, sizes, shape, num_warps=2 if again and not last else 1)
        assert again or found.metadata.shared == 0, "channels stay where they were read"
for code in (0, 1, 2):  # wide, channels first
    shape = dict(C=48, T=9, CODE=code, PREVIOUS=False, STARTED=False, GUESS=True, AGAIN=False, P=32, N=64, LEVELS=6)
    shape |= dict(EVEN=False, TOGETHER=4, STAGES=4, z_p=1, start_p=1, end_p=1)
    found = compiled(scan_kernel, sizes, shape, num_warps=1)
    assert found.asm["ptx"].count("cp.async.ca") > 3 * 12, "slots ahead are on their way to shared memory"
    assert found.metadata.shared <= 3 * 32 * 64 * 2 + 32, "no more than those, and the decisions on their way out"
"""
LOOK = """
from inlay.kernels.look_triton import changes_kernel, coarse_kernel, jumps_kernel, thumbs_kernel
sizes = dict.fromkeys(("thumbs_ptr", "seen_ptr", "last_ptr"), "*i32") | {"frames_ptr": "*u8", "out_ptr": "*fp64"}
found = compiled(thumbs_kernel, sizes, dict(STEPS=256, M=16, Q=64), num_warps=2)
assert found.asm["ptx"].count("ld.global.v4.b32") >= 8, "lines are read 16 bytes at a time, eight of them ahead"
shape = dict(STARTED=True, BITS=18, WHOLE=97920.0, P=256)
assert "redux" in compiled(jumps_kernel, sizes, shape, num_warps=1).asm["ptx"], "a warp counts at once"
ones = dict.fromkeys(("frames", "rows", "columns", "tall", "wide", "f_b", "f_f"), 1)  # as sizes of 1 are compiled
compiled(thumbs_kernel, sizes, ones | dict(STEPS=256, M=1, Q=4))
compiled(jumps_kernel, sizes, dict(frames=1, places=1, STARTED=False, BITS=18, WHOLE=97920.0, P=1), num_warps=1)
sizes = dict.fromkeys(("slots_ptr", "last_ptr", "seen_ptr", "out_ptr"), "*fp64") | {"z_ptr": "*fp32"}
for layout in ("z_c", "z_w"):
    compiled(coarse_kernel, sizes, dict(SIDE=4, P=64, N=16) | {layout: 1}, num_warps=4)
compiled(coarse_kernel, sizes, dict.fromkeys(("C", "T", "H", "W", "z_w"), 1) | dict(SIDE=4, P=1, N=1))
for started in (True, False):
    compiled(changes_kernel, sizes, dict(STARTED=started, SIDE=4, L=256), num_warps=2)
compiled(changes_kernel, sizes, dict(T=1, STARTED=True, SIDE=4, L=16))
"""
LIT = """
from inlay.kernels.lit_ends_triton import features_kernel, finish_kernel
from inlay.kernels.lit_triton import attention_kernel, near_norm_kernel, norm_kernel
shape = dict(COUNT=2, EPS=1e-5, D=256, P=8)
assert "bar.sync" not in compiled(near_norm_kernel, {}, shape, num_warps=8).asm["ptx"]
compiled(norm_kernel, {}, shape)
ends = dict(z_c=1, z_p=16, C=16, N=16, T=9, P=32)
compiled(features_kernel, {"keep_ptr": "*i8", "tau_ptr": "*fp32"}, ends, num_warps=1)
compiled(finish_kernel, {"keep_ptr": "*i8"}, ends, num_warps=1)
kinds = {"cos_ptr": "*fp32", "sin_ptr": "*fp32", "scale": "fp32"}
shape = dict(T=9, S=8, OFFSET=4, D=256, HALF=32, M=64, K=64)
found = compiled(attention_kernel, kinds, shape, num_warps=4, num_stages=2)
assert "wgmma.mma" in found.asm["ptx"] and found.metadata.shared < 227 * 1024
"""
TAPS = """
from inlay.kernels.norm_triton import apply_kernel, moments_kernel
from inlay.kernels.taps_triton import TILE, taps_kernel
sizes = dict.fromkeys(("bias_ptr", "moments_ptr"), "*fp32")
usual = dict(C=512, N=512, KT=1, KS=1, ST=1, SS=1, BEFORE=0, UP_T=1, UP=1, ALONE=0, PAST=False, ADD=False, NORM=False)
kinds = {
    "over time": dict(KT=3, BEFORE=2, PAST=True, ADD=True, NORM=True),
    "over time, a video's beginning": dict(KT=3, BEFORE=2, NORM=True),
    "down in time": dict(KT=3, ST=2, BEFORE=1, PAST=True),
    "up in time": dict(KT=2, BEFORE=1, UP_T=2, PAST=True, ADD=True, NORM=True),
    "up in time, a video's beginning": dict(KT=2, BEFORE=1, UP_T=2, ALONE=1, ADD=True),
    "down in space": dict(KS=3, SS=2, C=256, N=256, ADD=True, NORM=True),
    "up in space": dict(KS=2, UP=2, ADD=True, NORM=True),
    "single cells": dict(C=128, N=256, NORM=True),
    "few channels": dict(KT=3, BEFORE=2, C=16, N=16),
}
for name, own in kinds.items():
    for even in (True, False):
        shape = usual | own | dict(EVEN=even)
        tile = TILE.fitted(shape["C"], shape["N"])
        shape |= dict(BM=tile.cells, BN=tile.channels_out, BK=tile.channels_in)
        found = compiled(taps_kernel, sizes, shape, num_warps=tile.warps, num_stages=tile.stages)
        assert "wgmma.mma_async" in found.asm["ptx"], name
        assert found.metadata.shared < 227 * 1024, name
compiled(moments_kernel, sizes, dict(P=4096, STEPS=4), num_warps=8)
for silu in (True, False):
    for channels, wide, parts in ((512, 512, 8), (96, 128, 1)):
        shape = dict(SILU=silu, C=channels, WIDE=wide, PARTS=parts, R=4096 // wide, STEPS=4)
        compiled(apply_kernel, {"moments_ptr": "*fp32", "eps": "fp32"}, shape, num_warps=8)
"""


@pytest.mark.parametrize("kernels", [SCAN, LOOK, LIT, TAPS], ids=["scan", "look", "lit", "taps"])
def test_they_compile_for_hopper(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = subprocess.run([sys.executable, "-c", HOPPER + kernels], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
