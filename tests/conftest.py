# SPDX-License-Identifier: Apache-2.0
"""Clips made by code, an untrained backbone, the shared folder; random state restored after every test."""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it: before torch is loaded

import numpy as np
import pytest
import torch

from inlay.video.frames import Video

ROOT = Path(__file__).parent.parent
Run = Callable[..., tuple[int, str, str]]  # what the fixture `run` gives


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or os.environ.get("INLAY_REQUIRE_GPU") == "1":
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


SCHEDULED = (os.sched_getscheduler(0), os.sched_getparam(0)) if sys.platform == "linux" else None


@pytest.fixture(autouse=True)
def priority() -> Iterator[None]:
    """Encoders that tests call may leave a thread of root with real-time priority, which servers and browsers would
    inherit, to starve the machine."""
    yield
    if SCHEDULED is not None:
        os.sched_setscheduler(0, *SCHEDULED)


@pytest.fixture(autouse=True)
def random_state() -> Iterator[None]:
    """Every test starts from the same seed and leaves the generators as it found them."""
    python, legacy, state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    yield
    random.setstate(python)
    np.random.set_state(legacy)  # noqa: NPY002
    torch.set_rng_state(state)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process: its exit code, standard output and standard error."""
    from inlay.cli.main import main  # tests of kernels run where there is no command line

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real clips and metric weights."""
    path = Path(os.environ.get("INLAY_SHARED", ROOT.parent / "shared"))
    if not (path / "data").is_dir():
        pytest.skip(f"no real clips at {path}; set INLAY_SHARED to the folder that holds data/ and weights/")
    return path


@contextmanager
def scripts(folder: Path, *names: str) -> Iterator[dict[str, ModuleType]]:
    """Modules of a folder of scripts, which import one another by bare names; forgotten again, since others have the
    same names."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder:
                del sys.modules[name]


def moving_square(frames: int, height: int, width: int, *, speed: int = 2, seed: int = 0) -> Video:
    """A bright square that travels over a fixed smooth texture."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, max(height // 8, 2), max(width // 8, 2), generator=generator)
    ground = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)[0] * 160
    clip = ground.to(torch.uint8).permute(1, 2, 0).expand(frames, -1, -1, -1).clone()
    side = max(min(height, width) // 4, 1)
    for t in range(frames):
        x = (t * speed) % max(width - side, 1)
        clip[t, height // 3 : height // 3 + side, x : x + side] = torch.tensor([250, 200, 60], dtype=torch.uint8)
    return Video(frames=clip)


def still(frames: int, height: int, width: int, *, seed: int = 0) -> Video:
    """The same frame again and again."""
    one = moving_square(1, height, width, seed=seed).frames
    return Video(frames=one.expand(frames, -1, -1, -1).clone())


@pytest.fixture(scope="session")
def tiny_mini():  # type: ignore[no-untyped-def]
    from inlay.backbones import load_backbone

    return load_backbone("mini-untrained")


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_mini):  # type: ignore[no-untyped-def]
    from inlay.masking import Profile
    from inlay.tokenizer import Tokenizer

    profile = Profile(backbone="mini-untrained", weight_hash=tiny_mini.spec.weight_hash, tau=0.1)
    return Tokenizer(tiny_mini, profile=profile)
