# SPDX-License-Identifier: Apache-2.0
"""Replays and switches: on where they are safe, off when told, and always the plain answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inlay.errors import ConfigError
from inlay.kernels import Replay, compile_halves, compiles, is_on
from inlay.kernels.replay import KEPT
from inlay.masking import Profile
from inlay.tokenizer import Tokenizer
from tests.conftest import moving_square


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, want in (("0", (False, False)), ("1", (True, False)), ("", (True, False)), ("compile", (True, True))):
        monkeypatch.setenv("INLAY_FAST", said)
        assert (is_on(), compiles()) == want
    monkeypatch.setenv("INLAY_FAST", "yes")
    with pytest.raises(ConfigError, match="INLAY_FAST is one of 0, 1, compile; got 'yes'"):
        is_on()


def test_on_a_cpu_a_replay_is_the_function() -> None:
    calls = []
    replay = Replay(lambda x: calls.append(len(x)) or x * 2)  # type: ignore[func-returns-value]
    for _ in range(3):
        assert torch.equal(replay(torch.ones(2)), torch.full((2,), 2.0))
    assert calls == [2, 2, 2] and not replay.recordings


def test_nothing_is_compiled_unless_asked(tiny_mini, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    assert not compile_halves(tiny_mini, torch.device("cuda"))
    monkeypatch.setenv("INLAY_FAST", "compile")
    assert not compile_halves(tiny_mini, torch.device("cpu"))
    assert not compile_halves(object(), torch.device("cuda"))


def test_a_backbone_that_is_no_network_is_called_as_it_is(tiny_mini) -> None:  # type: ignore[no-untyped-def]
    class Stand:
        spec = tiny_mini.spec

        def encode(self, x: Tensor) -> Tensor:
            return tiny_mini.encode(x)

        def decode(self, z: Tensor) -> Tensor:
            return tiny_mini.decode(z)

        def to(self, *args: object) -> Stand:
            return self

    tokenizer = Tokenizer(Stand())
    assert not isinstance(tokenizer.run_encode, Replay) and isinstance(Tokenizer(tiny_mini).run_encode, Replay)
    assert tokenizer.encode(moving_square(5, 16, 16), tau=0.1).cells == 8


@pytest.mark.gpu
def test_numbers_shapes_and_the_limit_on_a_gpu() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2 + x.mean()

    replay = Replay(double)
    with torch.inference_mode():
        for size in range(1, KEPT + 4):
            for _ in range(3):
                x = torch.randn(size, 7, device="cuda")
                assert torch.equal(replay(x), double(x))
    assert sum(r is not None for r in replay.recordings.values()) == KEPT
    assert not replay.refused


@pytest.mark.gpu
def test_what_cannot_be_captured_stays_plain() -> None:
    replay = Replay(lambda x: x * float(x.sum()))  # waits for the GPU
    with torch.inference_mode():
        for _ in range(3):
            assert torch.equal(replay(torch.ones(3, device="cuda")), torch.full((3,), 3.0, device="cuda"))
    assert replay.refused


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_whole_way_is_the_plain_one_on_a_gpu(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.backbones import load_backbone
    from inlay.fill import Lit, plus

    def made() -> Tokenizer:
        torch.manual_seed(0)
        backbone = load_backbone("mini-untrained", device=torch.device("cuda"), dtype=dtype)
        lit = Lit.build(plus()).eval().requires_grad_(False)
        torch.nn.init.normal_(lit.out_proj.weight, std=0.02)
        profile = Profile(backbone="mini-untrained", weight_hash=backbone.spec.weight_hash, tau=0.1)
        return Tokenizer(backbone, profile=profile, lits={"lit": lit.to("cuda", dtype)}, device="cuda", dtype=dtype)

    clips = [moving_square(33, 64, 64, seed=s) for s in range(3)]
    fast = made()
    tokens = [fast.encode(c) for c in clips]
    back = [fast.decode(t) for t in tokens]
    assert any(r is not None for r in fast.run_encode.recordings.values()), "graphs were captured"
    monkeypatch.setenv("INLAY_FAST", "0")
    plain = made()
    for clip, t, video in zip(clips, tokens, back, strict=True):
        want = plain.encode(clip)
        assert torch.equal(t.mask, want.mask) and torch.equal(t.values, want.values)
        off = (video.frames.int() - plain.decode(want).frames.int()).abs()
        assert off.float().mean() < 0.5, "kernels round as bfloat16 does"
