# SPDX-License-Identifier: Apache-2.0
"""Gather what the benchmarks need on a GPU machine without a network, in one folder; open it there.

    python benchmarks/gpu_kit.py KIT --packages diffusers av --programs dav1d --clips VIDEOS   here: fill the folder
    python benchmarks/gpu_kit.py KIT --open                                                   there: unpack and check
    python benchmarks/gpu_records.py --kit KIT ...                                            opens it by itself

    KIT/kit.json            what is in it, and the sum of each part
    KIT/kit.000, ...        one .tar.xz, cut into parts of `--part` MiB, which may be brought one after the other
    KIT/open/               made by opening it: packages/ programs/ clips/ videos/NAME/ weights/ wheels/

Packages are wheels with those of their dependencies that a machine with torch may lack (`--there` names what it has).
Where the machine has one of its own, that one is used; if then something cannot be imported, all of the kit's are
tried. Compiled code goes without what debuggers read. Of `--excerpts` only the single files are taken that a benchmark
reads. `--clips` are made AV1 of one size and length, for `file_rate.py`. `--videos`, for the studies, stay as they are
coded; one that `--video-frames` cuts is another clip in their records, which name a clip by its bytes too. Of DAVIS
only the val sequences are taken.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
PACKAGES = ("diffusers", "av", "typer", "constriction", "isal")
THERE = (
    "torch", "torchvision", "triton", "numpy", "pillow", "safetensors", "accelerate", "huggingface-hub",
    "filelock", "fsspec", "jinja2", "packaging", "setuptools", "typing-extensions",
)  # fmt: skip
EXCERPTS = {"vllm": ("vllm/multimodal/video_prune/evs.py", "vllm/multimodal/evs.py")}  # the first one that it has
IMPORTS = {"diffusers": "from diffusers import AutoencoderKLWan"}  # where the bare import proves too little
GLIBC = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so")
WRAPPER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/files" exec "$here/files/{name}" "$@"
"""


# --- here -------------------------------------------------------------------------------------------------------------


def gather(a: argparse.Namespace) -> None:
    """Everything into a folder beside the kit, that folder into an archive, the archive into parts."""
    with tempfile.TemporaryDirectory(prefix="gpu-kit-") as work:
        inside = Path(work) / "inside"
        inside.mkdir()
        for program in a.programs:
            copy_program(program, inside / "programs")
        packages = list(fetch_packages(a, inside / "packages"))
        for name in a.excerpts:
            take_excerpt(a, name, inside / "wheels")
        for path in a.weights:
            shutil.copy(path, made(inside / "weights"))
        if a.clips:
            make_clips(a, inside / "clips")
        for name, folder in a.videos:
            take_videos(folder, inside / "videos" / name, a.video_frames, val=name == "davis")
        archive = Path(work) / "kit.tar.xz"
        with tarfile.open(archive, "w:xz", preset=9) as tar:
            tar.add(inside, arcname=".")
        for part in sorted(inside.iterdir()):
            say(f"{part.name}: {sum(p.stat().st_size for p in part.rglob('*')) / MIB:.1f} MiB, unpacked")
        if archive.stat().st_size > a.most * MIB:
            raise SystemExit(f"the kit would have {archive.stat().st_size / MIB:.2f} MiB; --most allows {a.most:g}")
        parts = cut_archive(archive, made(a.kit), a.part)
    contents = {"python": a.python, "asked": a.packages, "packages": packages, "parts": parts}
    (a.kit / "kit.json").write_text(json.dumps(contents, indent=1) + "\n")
    total = sum(p.stat().st_size for p in a.kit.iterdir() if p.is_file())
    say(f"{a.kit}: {total / MIB:.1f} MiB in {len(parts)} parts, for Python {a.python}")


def fetch_packages(a: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Each package in a folder of its own, and what it needs beyond what is there."""
    waiting, known = list(a.packages), {plain(name) for name in a.there}
    while waiting:
        name = plain(waiting.pop(0))
        if name in known:
            continue
        known.add(name)
        target = folder / name
        pip(a, "install", "--quiet", "--no-compile", "--target", str(target), name)
        shutil.rmtree(target / "bin", ignore_errors=True)
        if shutil.which("strip"):  # a quarter of PyAV
            compiled = map(str, target.rglob("*.so"))
            subprocess.run(["strip", "--strip-debug", *compiled], stderr=subprocess.DEVNULL)
        (found,) = importlib.metadata.distributions(path=[str(target)])
        waiting += needed(found, a.python)
        yield {"name": name, "version": found.version}


def pip(a: argparse.Namespace, *words: str) -> None:
    """For the other machine's Python, nothing but what is named, in the versions that the tests run with."""
    platforms = ["manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(17, 35))]
    command = [sys.executable, "-m", "pip", *words, "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", a.python, "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    done = subprocess.run([*command, *(f"--platform={p}" for p in platforms)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pip {' '.join(words)}: {done.stderr.strip()}")


def needed(package: importlib.metadata.Distribution, python: str) -> list[str]:
    """What it needs on Linux, extras left out."""
    from packaging.requirements import Requirement

    place = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    place |= {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
    found = map(Requirement, package.requires or ())
    return [one.name for one in found if one.marker is None or one.marker.evaluate(dict(place))]


def plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def take_excerpt(a: argparse.Namespace, name: str, folder: Path) -> None:
    """A wheel of the same name with the one file that is read."""
    with tempfile.TemporaryDirectory() as work:
        pip(a, "download", "--quiet", "-d", work, name)
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(made(folder) / wheel.name, "w") as excerpt:
            home = next(home for home in EXCERPTS[name] if home in whole.namelist())
            excerpt.writestr(home, whole.read(home))


def copy_program(name: str, folder: Path) -> None:
    """A program with the libraries it is linked to, but for those that every Linux has, behind a script of its name."""
    place = shutil.which(name)
    if place is None:
        raise SystemExit(f"no program {name} here; install it, or leave it out of --programs")
    files = made(folder / "files")
    shutil.copy(place, files / name)
    linked = subprocess.run(["ldd", place], capture_output=True, text=True).stdout  # nothing of one linked to none
    for library, path in re.findall(r"(\S+) => (/\S+)", linked):
        if not library.startswith(GLIBC):
            shutil.copy(path, files / library)
    (folder / name).write_text(WRAPPER.format(name=name))
    (folder / name).chmod(0o755)


def make_clips(a: argparse.Namespace, folder: Path) -> None:
    """AV1 in .ivf, all of one size and length."""
    import av

    from inlay.video import read_video
    from inlay.video.svt import undisturbed

    side, wanted = a.clip_size, sorted(a.clips.glob("*.mp4"))
    for path in wanted:
        video = read_video(path, size=f"{side}x{side}", frames=a.clip_frames)
        if len(video) < a.clip_frames:
            continue
        with undisturbed(), av.open(str(made(folder) / f"{path.stem}.ivf"), "w", format="ivf") as container:
            stream = container.add_stream("libsvtav1", rate=24, options={"preset": "8", "crf": "30"})
            stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
            for picture in video.frames.numpy():
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        if len(list(folder.iterdir())) == a.clip_count:
            return
    if not folder.is_dir():
        raise SystemExit(f"{a.clips}: none of {len(wanted)} videos has {a.clip_frames} frames")


def take_videos(source: Path, target: Path, frames: int, *, val: bool) -> None:
    """Videos by their names, the longer ones without what follows the first frames."""
    from inlay.video.listing import DAVIS_VAL

    paths = [p for p in sorted(source.glob("*.mp4")) if not val or p.stem.removeprefix("davis17_") in DAVIS_VAL]
    for path in paths:
        if not (frames and cut_video(path, made(target) / path.name, frames)):
            shutil.copy(path, made(target))
    if not paths:
        raise SystemExit(f"{source}: no .mp4 to take")


def cut_video(source: Path, target: Path, frames: int) -> bool:
    """The first frames as they are coded; nothing, and false, where there are no more than those."""
    import av

    with av.open(str(source)) as given:
        packets = [packet for packet in given.demux(video=0) if packet.size]
        if len(packets) <= frames:
            return False
        with av.open(str(target), "w") as cut:
            stream = cut.add_stream_from_template(given.streams.video[0], opaque=True)
            for packet in packets[:frames]:
                packet.stream = stream
                cut.mux(packet)
    return True


def cut_archive(archive: Path, folder: Path, part: float) -> list[dict[str, Any]]:
    """Its parts in the folder, and what joins them again."""
    for old in folder.glob("kit.*"):
        old.unlink()
    size = int(part * MIB) if part else archive.stat().st_size
    parts: list[dict[str, Any]] = []
    with archive.open("rb") as file:
        while data := file.read(size):
            name = f"kit.{len(parts):03d}"
            (folder / name).write_bytes(data)
            parts.append({"name": name, "sha256": hashlib.sha256(data).hexdigest()})
    return parts


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def existing(text: str) -> Path:
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"{text!r} is not here")
    return Path(text)


def named(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not folder:
        raise argparse.ArgumentTypeError(f"it takes NAME=FOLDER, as davis=data/davis; got {text!r}")
    return name, existing(folder)


# --- there: nothing but Python's own library --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A kit that is unpacked: where its things lie, and what finds its packages and programs."""

    folder: Path
    packages: tuple[str, ...]  # those of the kit that are used

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with the kit's packages, programs and weights in front."""
        folders = [str(self.folder / "packages" / name) for name in self.packages]
        changed = {
            "PYTHONPATH": os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PATH": os.pathsep.join([str(self.folder / "programs"), os.environ.get("PATH", "")]),
        }
        if (self.folder / "weights").is_dir():
            changed["INLAY_WEIGHTS"] = str(self.folder / "weights")
        return {**os.environ, **changed}

    def place(self, name: str) -> Path | None:
        """A folder of it, as `clips` or `videos/davis`, where the kit has that."""
        return self.folder / name if (self.folder / name).is_dir() else None


def open_kit(kit: Path) -> Opened:
    """Unpack a kit, unless it is, and say in a line each what can be imported and run."""
    try:
        contents = json.loads((kit / "kit.json").read_text())
    except FileNotFoundError:
        raise SystemExit(f"{kit}: no kit.json here; a kit is a folder that gpu_kit.py has filled") from None
    folder, asked = unpacked(kit, contents["parts"]), contents["asked"]
    names = tuple(package["name"] for package in contents["packages"])
    here = {name: version for name in names if (version := version_here(name))}
    opened = Opened(folder=folder, packages=tuple(name for name in names if name not in here))
    failed = failures(asked, opened)
    if failed and here:
        every = Opened(folder=folder, packages=names)
        if not failures(asked, every):
            opened, failed = every, {}
    own = [f"{name} {version}" for name, version in here.items() if name not in opened.packages]
    used = f"{len(opened.packages)} of {len(names)} packages are used"
    say(f"{kit}: {used}; the machine's own: {', '.join(own) or 'none'}")
    for name in asked:
        say(f"import {name}: {failed.get(name, 'ok')}")
    for program in sorted((folder / "programs").glob("*")):
        if program.is_file():
            say(f"program {program.name}: {starts(program)}")
    return opened


def unpacked(kit: Path, parts: list[dict[str, str]]) -> Path:
    """The folder with the kit's contents; a file in it says of which parts it was made."""
    folder, told = kit / "open", kit / "open" / "parts.json"
    if told.is_file() and json.loads(told.read_text()) == parts:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(joined(kit, parts))) as tar:
        tar.extractall(folder, filter="data")
    told.write_text(json.dumps(parts))
    return folder


def joined(kit: Path, parts: list[dict[str, str]]) -> bytes:
    """The archive; every part is there and whole, or one is named."""
    lacking = [part["name"] for part in parts if not (kit / part["name"]).is_file()]
    if lacking:
        raise SystemExit(f"{kit}: {len(lacking)} of {len(parts)} parts are not here: {' '.join(lacking)}")
    pieces = [(kit / part["name"]).read_bytes() for part in parts]
    for part, piece in zip(parts, pieces, strict=True):
        if hashlib.sha256(piece).hexdigest() != part["sha256"]:
            raise SystemExit(f"{kit / part['name']}: not the bytes that were gathered; bring it again")
    return b"".join(pieces)


def version_here(name: str) -> str | None:
    """Of a package that this Python has without the kit."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def failures(names: list[str], opened: Opened) -> dict[str, str]:
    """Of packages that cannot be imported, why; all are tried at once."""
    with ThreadPoolExecutor() as pool:
        told = pool.map(partial(why_not, environment=opened.environment), names)
        return {name: why for name, why in zip(names, told, strict=True) if why}


def why_not(name: str, environment: dict[str, str]) -> str:
    """Why a package cannot be imported; nothing where it can."""
    command = [sys.executable, "-c", IMPORTS.get(name, f"import {name.replace('-', '_')}")]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:
        return "took more than 90 s"
    return "" if done.returncode == 0 else last(done.stderr, done.returncode)


def starts(program: Path) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    return "ok" if done.returncode == 0 else last(done.stdout + done.stderr, done.returncode)


def last(told: str, code: int) -> str:
    return (told.strip().splitlines() or [f"ended with {code}"])[-1]


def say(line: str) -> None:
    print(line, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kit", type=Path)
    parser.add_argument("--open", action="store_true", help="unpack it here and check it; nothing else is done")
    parser.add_argument("--packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--there", nargs="*", default=list(THERE), help="packages that are never fetched")
    parser.add_argument("--excerpts", nargs="*", default=[], choices=list(EXCERPTS))
    parser.add_argument("--programs", nargs="*", default=[])
    parser.add_argument("--weights", nargs="*", type=existing, default=[], help="files, as those of LPIPS")
    parser.add_argument("--clips", type=existing, help="a folder of .mp4, for file_rate.py")
    parser.add_argument("--clip-size", type=int, default=256)
    parser.add_argument("--clip-count", type=int, default=8)
    parser.add_argument(
        "--videos", nargs="*", type=named, default=[], metavar="NAME=FOLDER", help="of .mp4, for the studies"
    )
    parser.add_argument("--clip-frames", type=int, default=66)
    parser.add_argument("--video-frames", type=int, default=0, help="the first ones only; 0 leaves files as they are")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--part", type=float, default=0, help="MiB of a part; 0 makes one")
    parser.add_argument("--most", type=float, default=60, help="MiB of all; a larger kit is refused")
    return parser.parse_args()


def main() -> None:
    a = parse()
    if a.open:
        open_kit(a.kit)
    else:
        gather(a)


if __name__ == "__main__":
    main()
