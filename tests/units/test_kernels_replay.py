# SPDX-License-Identifier: Apache-2.0
"""Replays and switches: on where they are safe, off when told, and always the plain answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inlay.errors import ConfigError
from inlay.kernels import Replay, compile_halves, compiles, is_on
from inlay.kernels.replay import KEPT, MET, Run, copy_all, layout
from inlay.kernels.rule import PATHS
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


Stream = tuple[Tensor, list[Tensor]]


class Takes:
    """A capture that needs no GPU: it plays by running once more into the tensors of the first run."""

    def __init__(self) -> None:
        self.captures, self.plays = 0, 0
        self.outputs: list[Tensor] = []

    def __call__(self, run: Run) -> tuple[Callable[[], None], list[Tensor]]:
        self.captures += 1
        self.outputs = outputs = run()

        def play() -> None:
            self.plays += 1
            copy_all(outputs, [t.clone() for t in run()])

        return play, outputs


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Takes:
    """Recordings on a CPU: the rule's line for graphs says so."""
    monkeypatch.setitem(PATHS, "graphs", replace(PATHS["graphs"], device="cpu", needs=("on",)))
    return Takes()


def step(x: Tensor, state: list[Tensor] | None, *, scale: float = 1.0) -> Stream:
    """A stateful half: a sum so far, and a count with gaps in memory."""
    total, count = (torch.zeros_like(x), torch.zeros(2, 6)[:, ::2]) if state is None else state
    total = total + scale * x
    return total * 2, [total, (count.repeat_interleave(2, dim=1) + 1)[:, ::2]]


def run_stream(function: Callable[..., Stream], chunks: int, **options: float) -> list[Stream]:
    state, answers = None, []
    for i in range(chunks):
        out, state = function(torch.full((2, 3), float(i)), state, **options)
        answers.append((out, state))
    return answers


def same(a: list[Stream], b: list[Stream]) -> bool:
    flat = [[t for out, state in answers for t in (out, *state)] for answers in (a, b)]
    return all(torch.equal(x, y) for x, y in zip(*flat, strict=True))


def held(replay: Replay[..., object]) -> int:
    return sum(r is not None for r in replay.recordings.values())


@torch.inference_mode()
def test_a_state_is_carried_and_its_gaps_make_no_second_recording(takes: Takes) -> None:
    replay = Replay(step, capture=takes)
    answers = run_stream(replay, 7)
    assert same(answers, run_stream(step, 7)), "those handed out early are as they were"
    assert (takes.captures, takes.plays) == (1, 5), "the first chunk and the second are kinds of their own"
    assert same(run_stream(replay, 3), run_stream(step, 3))
    assert (takes.captures, takes.plays, len(replay.recordings)) == (2, 8, 2)


@torch.inference_mode()
def test_answers_are_the_callers_own(takes: Takes) -> None:
    replay = Replay(lambda x, state: (x, [x, state[0]]), capture=takes)  # hands on what it was given
    x, state = torch.ones(3), [torch.zeros(3)]
    for _ in range(3):
        out, after = replay(x, state)
    out.fill_(9)
    again, _ = replay(x, state)
    assert torch.equal(x, torch.ones(3)) and torch.equal(again, x) and torch.equal(after[0], x)
    places = {t.data_ptr() for t in (x, out, again, *after, *state)}
    assert len(places) == 6 and not places & {t.data_ptr() for t in takes.outputs}


@torch.inference_mode()
def test_constants_and_names_choose_the_recording(takes: Takes) -> None:
    replay = Replay(step, capture=takes)
    for scale in (1.0, 3.0, 1.0, 3.0, 3.0):
        assert same(run_stream(replay, 1, scale=scale), run_stream(step, 1, scale=scale))
    assert (takes.captures, takes.plays) == (2, 3)


@torch.inference_mode()
def test_kinds_that_take_turns_push_nobody_out(takes: Takes) -> None:
    replay = Replay(lambda x: x + 1, capture=takes)
    for size in [*range(1, KEPT + 3)] * 5:
        assert torch.equal(replay(torch.ones(size)), torch.full((size,), 2.0))
    assert takes.captures == held(replay) == KEPT
    for _ in range(2):
        replay(torch.ones(50))
    assert takes.captures == KEPT + 1 and held(replay) == KEPT, "what comes again and again finds a place"


@torch.inference_mode()
def test_a_state_that_grows_is_never_recorded_and_soon_forgotten(takes: Takes) -> None:
    replay = Replay(lambda x, seen: torch.cat([seen, x]), capture=takes)
    seen = torch.zeros(0)
    for _ in range(2 * MET):
        seen = replay(torch.ones(1), seen)
    assert len(seen) == 2 * MET and takes.captures == 0 and len(replay.recordings) == MET


@torch.inference_mode()
def test_odd_arguments_answers_and_hooks_stay_plain(takes: Takes) -> None:
    odd = Replay(lambda x, what: x + len(what), capture=takes)
    answer = Replay(lambda x: {"x": x, "what": object()}, capture=takes)
    hooked = torch.nn.Linear(2, 2)
    hooked.register_forward_pre_hook(lambda module, args: None)
    watched = Replay(hooked, capture=takes)
    for _ in range(3):
        assert odd(torch.zeros(1), {1, 2}) == 2
        assert torch.equal(answer(torch.ones(2))["x"], torch.ones(2))
        watched(torch.ones(2))
    assert not odd.recordings and not watched.recordings and takes.plays == 0
    assert "object is neither a tensor" in answer.refused


def test_gradients_and_the_switch_keep_it_plain(takes: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(step, capture=takes)
    run_stream(replay, 4)
    monkeypatch.setenv("INLAY_FAST", "0")
    with torch.inference_mode():
        run_stream(replay, 4)
    assert not replay.recordings


def test_copies_lie_as_torch_lays_them() -> None:
    x = torch.randn(2, 3, 4, 5)
    for t in (x, x.permute(0, 2, 3, 1), x[:, :2], x.permute(1, 0, 3, 2)[..., ::2], x[:, :1].expand(2, 3, 4, 5)):
        assert layout(t) == t.clone().stride()


def test_copies_of_any_kind() -> None:
    sources = [torch.randn(3, 4), torch.randn(4, 3).t(), torch.rand(5) < 0.5, torch.arange(3), torch.randn(2).half()]
    targets = [torch.zeros(s.shape, dtype=s.dtype) for s in sources]
    copy_all(targets, sources)
    assert all(torch.equal(t, s) for t, s in zip(targets, sources, strict=True))


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
    assert tokenizer.encode(moving_square(5, 16, 16), tau=0.1, mode="clips").cells == 8


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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["mini", "cosmos"])
def test_streams_through_both_halves_on_a_gpu(kind: str, dtype: torch.dtype) -> None:
    from inlay.backbones.cosmos import Cosmos, tiny_cosmos
    from inlay.backbones.mini import Mini, tiny

    torch.manual_seed(0)
    network = Mini(tiny()) if kind == "mini" else Cosmos(tiny_cosmos(), attention_window=2)
    network = network.eval().requires_grad_(False).to("cuda", dtype)
    encode, decode = Replay(network.encode_next), Replay(network.decode_next)
    with torch.inference_mode():
        states: dict[str, list[Tensor] | None] = dict.fromkeys(("z", "want z", "x", "want x"))
        answers = []
        for i in range(7):
            x = torch.rand(2, 3, 8 + (i == 0), 32, 48, device="cuda", dtype=dtype) * 2 - 1
            z, states["z"] = encode(x, states["z"])
            want_z, states["want z"] = network.encode_next(x, states["want z"])
            y, states["x"] = decode(z, states["x"])
            want_y, states["want x"] = network.decode_next(want_z, states["want x"])
            answers.append((z, want_z, y, want_y))
    assert all(torch.equal(z, want_z) and torch.equal(y, want_y) for z, want_z, y, want_y in answers)
    for half in (encode, decode):
        assert held(half) >= 1 and not half.refused, half.refused


@pytest.mark.gpu
def test_copies_are_one_launch_on_a_gpu() -> None:
    sources = [torch.randn(4, n, 8, 8, device="cuda").to(memory_format=torch.channels_last) for n in range(1, 31)]
    targets = [torch.empty_like(s) for s in sources]
    copy_all(targets, sources)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        copy_all(targets, sources)
        torch.cuda.synchronize()
    assert all(torch.equal(t, s) for t, s in zip(targets, sources, strict=True))
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) <= 3, [e.name for e in kernels]


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
    from inlay.codec import placing
    from inlay.fill import Filler, Lit, plus

    monkeypatch.setattr(placing, "_replay", Replay(placing.lay_out))

    def made() -> Tokenizer:
        torch.manual_seed(0)
        backbone = load_backbone("mini-untrained", device=torch.device("cuda"), dtype=dtype)
        lit = Lit.build(plus()).eval().requires_grad_(False)
        torch.nn.init.normal_(lit.out_proj.weight, std=0.02)
        profile = Profile(backbone="mini-untrained", weight_hash=backbone.spec.weight_hash, tau=0.1)
        filler = Filler({"lit": lit.to("cuda", dtype)}, device="cuda", dtype=dtype)
        return Tokenizer(backbone, profile=profile, filler=filler, device="cuda", dtype=dtype)

    clips = [moving_square(33, 64, 64, seed=s) for s in range(3)]
    fast = made()
    tokens = [fast.encode(c) for c in clips]
    back = [fast.decode(t) for t in tokens]
    for replay in (
        fast._encode_frames,
        fast._keep_cells,
        placing._replay,
        fast.filler._replays["lit"],
        fast._decode_frames,
    ):
        assert held(replay) and not replay.refused, f"{replay.function} was captured; {replay.refused}"
    monkeypatch.setenv("INLAY_FAST", "0")
    plain = made()
    for clip, t, video in zip(clips, tokens, back, strict=True):
        want = plain.encode(clip)
        assert torch.equal(t.mask, want.mask) and torch.equal(t.values, want.values)
        off = (video.frames.int() - plain.decode(want).frames.int()).abs()
        assert off.float().mean() < 0.5, "kernels round as bfloat16 does"
