# SPDX-License-Identifier: Apache-2.0
"""The wheel and the source archive: built here, installed elsewhere, used without a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from inlay.video import write_video
from inlay.video.synthetic import moving_square
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed; the extra dev brings it"),
    pytest.mark.skipif(sys.platform == "win32", reason="environments lie otherwise there"),
]
CLEAN = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def call(*words: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(w) for w in words], cwd=cwd, env=CLEAN, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make dist` does."""
    place = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "hatchling", "build", "-d", place)
    return place


def environment(place: Path) -> Path:
    """An empty environment that finds the packages Inlay needs in this one, but not this Inlay; returns its Python."""
    call(sys.executable, "-m", "venv", "--without-pip", place)
    python = place / "bin" / "python"
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    ours = [place for place in sys.path if place.endswith("site-packages")]
    (site / "needs.pth").write_text("\n".join(ours) + "\n")  # their own .pth files do not count there
    return python


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def use(python: Path, place: Path) -> None:
    """What a new user does, in a folder that has nothing to do with the checkout."""
    write_video(moving_square(9, 32, 32), place / "clip.mp4")
    inlay = python.parent / "inlay"
    where = Path(call(python, "-c", "import inlay; print(inlay.__file__)", cwd=place).strip())
    assert where.is_relative_to(python.parents[1]), "the installed copy, not the checkout"
    head = call("git", "rev-parse", "HEAD").strip() if (ROOT / ".git").exists() else ""
    assert f"({head[:12]}" in call(inlay, "--version", cwd=place) or not head
    call(inlay, "encode", "clip.mp4", "--device", "cpu", cwd=place)
    call(inlay, "decode", "clip.inlay", "--device", "cpu", cwd=place)
    code = (
        "import inlay; t = inlay.Tokenizer.from_pretrained('mini', device='cpu');"
        "print(len(t.decode(inlay.open('clip.inlay'))))"
    )
    assert call(python, "-c", code, cwd=place).strip() == "9"
    assert (place / "clip.decoded.mp4").is_file()


def test_the_wheel_works_without_a_checkout(built: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    (wheel,) = built.glob("*.whl")
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--quiet", wheel)
    (tmp_path / "elsewhere").mkdir()
    use(python, tmp_path / "elsewhere")


def test_the_source_archive_gives_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=tree)
    (again,) = (tmp_path / "again").glob("*.whl")
    assert files_of(again) == files_of(wheel) >= {"inlay/_commit.txt", "inlay/py.typed", "inlay/web/page.css"}
    assert not any(name.startswith(("tests/", "docs/")) for name in files_of(wheel))


def test_uv_installs_it_too(built: Path, tmp_path: Path) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is not installed")
    python = environment(tmp_path / "env")
    (wheel,) = built.glob("*.whl")
    call(uv, "pip", "install", "--offline", "--no-deps", "--quiet", "--python", python, wheel)
    (tmp_path / "elsewhere").mkdir()
    use(python, tmp_path / "elsewhere")
