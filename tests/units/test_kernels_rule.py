# SPDX-License-Identifier: Apache-2.0
"""The rule that says when a fast twin may run, and the report that is read from the same table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from inlay.fill.lit import LitConfig, WindowBlock
from inlay.kernels import rule, windows
from inlay.kernels.rule import NEEDS, PATHS, Name, fast_paths, may_run, why_not

CALLED = [name for name in PATHS if name != "compiled"]  # that one is asked for by level, once, not by each call


@dataclass(frozen=True, kw_only=True)
class Stand:
    """A tensor as the rule sees it, of a device that need not be here."""

    device: torch.device
    dtype: torch.dtype
    requires_grad: bool = False


def fitting(name: Name) -> Stand:
    path = PATHS[name]
    return Stand(device=torch.device(path.device), dtype=path.dtypes[0] if path.dtypes else torch.float32)


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything, with gradients off."""
    for need in ("cuda", "triton", "vnni", "avx512_bf16", "isal"):
        monkeypatch.setitem(NEEDS, need, (lambda: True, ""))
    monkeypatch.setenv("INLAY_FAST", "1")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def asked(name: Name, tensor: Stand) -> bool:
    return may_run(name, tensors=(tensor,))  # type: ignore[arg-type]


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("name", CALLED)
def test_all_run_where_nothing_speaks_against_it(name: Name) -> None:
    with torch.no_grad():
        assert asked(name, fitting(name))
        assert not may_run(name, tensors=())


WRONG: dict[str, Callable[[Stand], Stand]] = {
    "another device": lambda t: replace(t, device=torch.device("cpu" if t.device.type == "cuda" else "cuda")),
    "no known device": lambda t: replace(t, device=torch.device("meta")),
    "another dtype": lambda t: replace(t, dtype=torch.float64),
}


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", CALLED)
def test_wrong_tensors_are_refused(name: Name, wrong: str) -> None:
    good, bad = fitting(name), WRONG[wrong](fitting(name))
    with torch.no_grad():
        assert asked(name, bad) == (wrong == "another dtype" and not PATHS[name].dtypes)
        assert may_run(name, tensors=(good, bad)) == asked(name, bad), "one is enough"  # type: ignore[arg-type]


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("name", CALLED)
def test_autocast_refuses_twins_that_read_weights(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == PATHS[name].device)
    with torch.no_grad():
        assert asked(name, fitting(name)) != PATHS[name].inference


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("name", CALLED)
def test_gradients_are_never_lost(name: Name) -> None:
    tensor = fitting(name)
    with torch.enable_grad():
        assert not asked(name, replace(tensor, requires_grad=True))
        assert asked(name, tensor) == (not PATHS[name].inference), "weights that the rule is not shown may want one"
    with torch.no_grad():
        assert asked(name, replace(tensor, requires_grad=True)), "turned off, nothing wants one"


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("name", CALLED)
@pytest.mark.parametrize("switch", [(torch.compiler, "is_compiling"), (torch.jit, "is_tracing")])
def test_graphs_are_made_of_the_plain_form(
    name: Name, switch: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*switch, lambda: True)
    with torch.no_grad():
        assert not asked(name, fitting(name))


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("name", CALLED)
def test_captures_hold_kernels_but_no_captures(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with torch.no_grad():
        assert asked(name, fitting(name)) == (name != "graphs")


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("name", PATHS)
def test_the_switch_turns_all_off(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_FAST", "0")
    with torch.no_grad():
        assert why_not(name) and not asked(name, fitting(name))
    monkeypatch.setenv("INLAY_FAST", "compile")
    assert not why_not(name)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("name", "need"), [(n, need) for n, p in PATHS.items() for need in p.needs])
def test_what_is_missing_is_refused_and_reported(name: Name, need: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_FAST", "compile")
    monkeypatch.setitem(NEEDS, need, (lambda: False, "it is not here"))
    with torch.no_grad():
        assert not asked(name, fitting(name))
    (state,) = [state for title, state in fast_paths().items() if title.startswith(PATHS[name].title)]
    assert state == "off: it is not here"


@pytest.mark.usefixtures("able")
def test_the_report_lists_every_path_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fast_paths()
    assert len(found) == len(PATHS)
    assert found["LIT kernels (CUDA, bfloat16 or float16)"] == found["LIT window by window (CPU)"] == "on"
    assert found["compiled networks (CUDA)"].startswith("off: INLAY_FAST=compile turns it on")
    with monkeypatch.context() as without:
        without.setitem(NEEDS, "cuda", (lambda: False, "no CUDA device"))
        assert fast_paths()["compiled networks (CUDA)"] == "off: no CUDA device", "what nothing can turn on comes first"
    monkeypatch.setenv("INLAY_FAST", "0")
    assert set(fast_paths().values()) == {"off: INLAY_FAST=0", found["compiled networks (CUDA)"]}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is")
def test_real_tensors_and_a_real_trace() -> None:
    x = torch.zeros(1)
    with torch.no_grad():
        assert may_run("windows", tensors=(x,)) and may_run("winograd", tensors=(x,))
        assert not may_run("scan", tensors=(x,)) and not may_run("graphs", tensors=(x,))
        seen: list[bool] = []
        torch.jit.trace(lambda x: seen.append(may_run("windows", tensors=(x,))) or x + 1, x, check_trace=False)  # type: ignore[func-returns-value]
    assert seen == [False]


def test_a_window_block_has_the_layers_that_windows_ask_for() -> None:
    block = WindowBlock(LitConfig(channels=4, width=64, heads=2, window=4), shifted=True)
    for name, kind in windows.WindowLayers.__annotations__.items():
        assert isinstance(getattr(block, name), {"int": int}.get(kind) or getattr(nn, kind.removeprefix("nn.")))


def test_needs_are_known() -> None:
    assert {need for path in PATHS.values() for need in path.needs} == set(rule.NEEDS)
