# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM and SGLang: what it replaces, and when it leaves everything as it is.

The servers need a GPU to install, so here are packages with the modules and signatures of theirs;
tests/contracts/test_vlm_servers.py uses the servers' own files.
"""

from __future__ import annotations

import importlib
import logging
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.guard.tree import ROOT

PLUGIN = ROOT / "plugins" / "inlay-vllm"
EVS = """
    __version__ = "9.9"
    def compute_retained_tokens_count(tokens_per_frame, num_frames, q):
        return max(tokens_per_frame, int(tokens_per_frame * num_frames * (1 - q))) - 1 + 1
    def compute_retention_mask(video_embeds, video_size_thw, spatial_merge_size, q):
        raise AssertionError("the server's own")
"""
NEW, OLD = "vllm/multimodal/video_prune/evs.py", "vllm/multimodal/evs.py"
SGLANG = "sglang/srt/multimodal/evs/evs_core.py"
HOOKS = """
    import importlib
    from enum import Enum
    class HookType(Enum):
        AFTER, REPLACE = "after", "replace"
    class HookRegistry:
        hooks = []
        @classmethod
        def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
            cls.hooks.append((target, hook, hook_type))
"""


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.delenv("INLAY_VLM", raising=False)
    monkeypatch.syspath_prepend(str(PLUGIN / "src"))
    yield importlib.import_module("inlay_vllm")
    for name in [n for n in sys.modules if n.split(".")[0] in ("vllm", "sglang", "inlay_vllm")]:
        del sys.modules[name]


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        for folder in [p for p in path.parents if root in p.parents]:
            if not (folder / "__init__.py").exists():
                (folder / "__init__.py").write_text('__version__ = "9.9"\n')


def embeds() -> torch.Tensor:
    return torch.randn(6 * 4, 8, generator=torch.Generator().manual_seed(0))


def test_without_the_variable_nothing_is_imported(plugin: ModuleType, servers: Path) -> None:
    put(servers, {NEW: EVS, SGLANG: EVS})
    plugin.vllm_plugin()
    plugin.sglang_plugin()
    assert not [name for name in sys.modules if name.split(".")[0] in ("vllm", "sglang")]


@pytest.mark.parametrize("home", [NEW, OLD])
@pytest.mark.parametrize("rule,criterion", [("last-kept", "cosine"), ("last-kept-l1", "l1")])
def test_vllm_and_its_models_get_the_rule(
    plugin: ModuleType, servers: Path, monkeypatch: pytest.MonkeyPatch, home: str, rule: str, criterion: str
) -> None:
    from inlay.vlm import compute_retention_mask

    module = home.removesuffix(".py").replace("/", ".")
    model = f"from {module} import compute_retained_tokens_count, compute_retention_mask as own_name"
    put(servers, {home: EVS, "vllm/models/early.py": model, "vllm/models/late.py": model})
    early = importlib.import_module("vllm.models.early")
    count = early.compute_retained_tokens_count
    monkeypatch.setenv("INLAY_VLM", rule)
    plugin.vllm_plugin()
    plugin.vllm_plugin()  # vLLM may call it again
    late, evs = importlib.import_module("vllm.models.late"), importlib.import_module(module)
    wanted = compute_retention_mask(embeds(), (6, 4, 4), 2, 0.4, criterion=criterion)
    for function in (early.own_name, late.own_name, evs.compute_retention_mask):
        assert torch.equal(function(embeds(), (6, 4, 4), spatial_merge_size=2, q=0.4), wanted)
    assert evs.compute_retained_tokens_count is late.compute_retained_tokens_count is count
    assert not hasattr(evs.compute_retention_mask.__wrapped__, "__wrapped__"), "put in place once"


def test_the_count_is_the_servers_own(plugin: ModuleType, servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(servers, {NEW: EVS.replace("- 1 + 1", "+ 3")})
    monkeypatch.setenv("INLAY_VLM", "last-kept")
    plugin.vllm_plugin()
    mask = sys.modules["vllm.multimodal.video_prune.evs"].compute_retention_mask(embeds(), (6, 4, 4), 2, 0.5)
    assert int(mask.sum()) == 12 + 3


def test_sglang_gets_it_through_its_hooks(plugin: ModuleType, servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(servers, {SGLANG: EVS, "sglang/srt/plugins/hook_registry.py": HOOKS})
    monkeypatch.setenv("INLAY_VLM", "last-kept")
    plugin.sglang_plugin()
    hooks = sys.modules["sglang.srt.plugins.hook_registry"]
    ((target, hook, kind),) = hooks.HookRegistry.hooks
    assert (target, kind) == ("sglang.srt.multimodal.evs.evs_core.compute_retention_mask", hooks.HookType.REPLACE)
    assert int(hook(embeds(), video_size_thw=(6, 4, 4), spatial_merge_size=2, q=0.5).sum()) == 12


GOOD_HOOKS = {"sglang/srt/plugins/hook_registry.py": HOOKS}
REFUSED = {  # what is found -> (rule, server, files, what the warning says)
    "unknown rule": ("last-kep", "vllm", {NEW: EVS}, "INLAY_VLM is 'last-kep'; write one of last-kept, last-kept-l1"),
    "no server": ("last-kept", "vllm", {}, "vllm has no vllm.multimodal.video_prune.evs or vllm.multimodal.evs"),
    "no module": ("last-kept", "vllm", {"vllm/other.py": "pass"}, "vllm 9.9 has no"),
    "breaks": ("last-kept", "vllm", {OLD: "raise RuntimeError('no\\ndriver')"}, "no driver"),
    "no function": ("last-kept", "vllm", {NEW: "pass"}, "of vllm 9.9 has no function compute_retention_mask"),
    "other signature": ("last-kept", "vllm", {NEW: EVS.replace("size, q)", "size, q, k)")}, "merge_size, q, k)"),
    "other count": ("last-kept", "vllm", {NEW: EVS.replace("num_frames, q)", "rate)")}, "(tokens_per_frame, rate)"),
    "no evs": ("last-kept", "sglang", GOOD_HOOKS, "sglang 9.9 has no sglang.srt.multimodal.evs.evs_core"),
    "no hooks": ("last-kept", "sglang", {SGLANG: EVS}, "sglang 9.9 has no sglang.srt.plugins.hook_registry"),
    "other hooks": (
        "last-kept", "sglang", {SGLANG: EVS, "sglang/srt/plugins/hook_registry.py": HOOKS.replace("REPLACE", "SWAP")},
        "has no hook that replaces",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_know_it_leaves_alone(
    plugin: ModuleType,
    servers: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    case: str,
) -> None:
    rule, server, files, words = REFUSED[case]
    put(servers, files)
    monkeypatch.setenv("INLAY_VLM", rule)
    with caplog.at_level(logging.INFO):
        getattr(plugin, f"{server}_plugin")()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.name == f"{server}.inlay"
    assert words in record.message and record.message.endswith("; nothing is changed, EVS prunes as before")
    assert "\n" not in record.message
    home = sys.modules.get("vllm.multimodal.video_prune.evs") or sys.modules.get("sglang.srt.multimodal.evs.evs_core")
    if home is not None and hasattr(home, "compute_retention_mask"):
        assert not hasattr(home.compute_retention_mask, "inlay_criterion")


def test_the_entry_points_lead_to_functions(plugin: ModuleType) -> None:
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]
    assert set(points) == {"vllm.general_plugins", "sglang.srt.plugins"}
    for group in points.values():
        for value in group.values():
            module, name = value.split(":")
            assert module == "inlay_vllm" and callable(getattr(plugin, name))
