# SPDX-License-Identifier: Apache-2.0
"""A packed cache in the place of a trainer's own files: a data set, a loader or a hook for each.

Each reads what the trainer would read, by the same functions, from bytes in memory. Nothing is written to disk.
"""

from __future__ import annotations

import fnmatch
import glob
import importlib
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from inlay.caches.fastvideo import BYTES, rest_of_table
from inlay.caches.reader import PackedCache
from inlay.caches.rest import unpack_rest
from inlay.errors import UsageError


def _opened(place: str | Path | PackedCache, *formats: str) -> PackedCache:
    cache = place if isinstance(place, PackedCache) else PackedCache(place)
    if cache.record.format not in formats:
        raise UsageError(f"{cache.root} holds a cache of {cache.record.format}, and this reads {' or '.join(formats)}")
    return cache


class DiffSynthDataset(Dataset[Any]):
    """In place of `UnifiedDataset(base_path, metadata_path=None)`: the tuples of dictionaries.

    Args:
        place: the folder that `inlay cache pack` wrote.
        repeat: as in DiffSynth-Studio: an epoch is so many times the data.
        trust: load pickles that hold more than tensors; such files can run code.
    """

    load_from_cache = True  # the trainer asks

    def __init__(self, place: str | Path, *, repeat: int = 1, trust: bool = False) -> None:
        self.cache, self.repeat, self.trust = _opened(place, "diffsynth"), repeat, trust
        self.paths = self.cache.paths

    def __repr__(self) -> str:
        return f"DiffSynthDataset({len(self):,} samples of {self.cache})"

    def __len__(self) -> int:
        return len(self.paths) * self.repeat

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        path = self.paths[i % len(self.paths)]
        file = self.cache.open(path)
        try:
            return torch.load(file, map_location="cpu", weights_only=not self.trust)
        except pickle.UnpicklingError as error:
            if self.trust:
                raise
            raise UsageError(
                f"{self.cache.root}: {path} holds more than tensors, such as pictures; give trust=True if you made it: "
                "such files can run code"
            ) from error


LTX_SOURCES = {"latents": "latent_conditions", "conditions": "text_conditions"}


class LtxDataset(Dataset[dict[str, Any]]):
    """In place of `PrecomputedDataset(data_root, data_sources)`; FastVideo reads the same layout.

    Args:
        place: the folder that `inlay cache pack` wrote.
        data_sources: folder of the cache -> key of a sample, or folders alone; clips that lack one are passed over.
    """

    def __init__(self, place: str | Path, data_sources: Mapping[str, str] | Sequence[str] | None = None) -> None:
        self.cache = _opened(place, "ltx")
        sources = data_sources or LTX_SOURCES
        self.data_sources = dict(sources) if isinstance(sources, Mapping) else {name: name for name in sources}
        there = {*self.cache.other_paths(), *self.cache.files}
        samples = map(self._paths, self.cache.paths)
        self.samples = [sample for sample in samples if there.issuperset(sample.values())]
        if not self.samples:
            raise UsageError(f"{self.cache.root}: no clip has all of {', '.join(self.data_sources)}")

    def __repr__(self) -> str:
        return f"LtxDataset({len(self):,} samples with {', '.join(self.data_sources)}, of {self.cache})"

    def _paths(self, path: str) -> dict[str, str]:
        """Where each source of a sample lies, by its key."""
        before, _, below = path.partition("latents/")
        found = {}
        for folder, key in self.data_sources.items():
            place = PurePosixPath(below)
            if folder == "conditions" and place.name.startswith("latent_"):  # of old, in no folder below
                place = PurePosixPath(f"condition_{place.name.removeprefix('latent_')}")
            found[key] = f"{before}{folder}/{place}"
        return found

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> dict[str, Any]:
        sample = {
            key: torch.load(self.cache.open(path), map_location="cpu", weights_only=True)
            for key, path in self.samples[i].items()
        }
        return sample | {"idx": i}


class FastVideoDataset(Dataset[Any]):
    """In place of `LatentsParquetMapStyleDataset`: rows, and batches of them.

    Args:
        place: the folder that `inlay cache pack` wrote.
        collate: makes a batch of rows: FastVideo's `collate_rows_from_parquet_schema` with its schema and padding.
    """

    def __init__(self, place: str | Path, *, collate: Callable[[list[dict[str, Any]]], Any] = list) -> None:
        self.cache, self.collate = _opened(place, "fastvideo"), collate
        self.places = [(path, row) for path, file in self.cache.files.items() for row in range(len(file.clips))]

    def __repr__(self) -> str:
        return f"FastVideoDataset({len(self):,} rows of {self.cache})"

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, i: int) -> dict[str, Any]:
        path, row = self.places[i]
        found: dict[str, Any]
        (found,) = _table(self.cache, path).slice(row, 1).to_pylist()
        found[BYTES] = self.cache.latents(path, row).contiguous().numpy().tobytes()
        return found

    def __getitems__(self, indices: list[int]) -> Any:
        return self.collate([self[i] for i in indices])


@lru_cache(maxsize=2)
def _table(cache: PackedCache, path: str) -> Any:
    """A table without its latents; kept for the next row of it."""
    _, rest = unpack_rest(cache.rest(path))
    return rest_of_table(rest, len(cache.files[path].clips)).read(use_threads=False)


class SimpleTunerFiles:
    """What SimpleTuner's `LocalDataBackend` does with files of the VAE cache, from a packed one.

    Args:
        place: the folder that `inlay cache pack` wrote.
        cache_dir: where SimpleTuner would look for the files (cache_dir_vae).
    """

    def __init__(self, place: str | Path, cache_dir: str | Path) -> None:
        self.cache, self.cache_dir = _opened(place, "simpletuner"), Path(cache_dir).absolute()

    def __repr__(self) -> str:
        return f"SimpleTunerFiles({self.cache} in place of {self.cache_dir})"

    def _path(self, filename: str | Path) -> str | None:
        try:
            path = Path(filename).absolute().relative_to(self.cache_dir).as_posix()
        except ValueError:
            return None
        return path if path in self.cache.files else None

    def exists(self, filename: str | Path) -> bool:
        return self._path(filename) is not None

    def list_files(self) -> list[str]:
        return [str(self.cache_dir / path) for path in self.cache.paths]

    def torch_load(self, filename: str | Path) -> Tensor:
        path = self._path(filename)
        if path is None:
            raise FileNotFoundError(f"{filename} not found.")  # as SimpleTuner says it, and catches it
        return torch.load(self.cache.open(path), map_location="cpu", weights_only=True)


class _PackedGlob:
    """Stands for the module `glob` in musubi-tuner: names of packed files are found too."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def glob(self, pattern: str, **more: Any) -> list[str]:
        return glob.glob(pattern, **more) + fnmatch.filter(self.names, pattern)  # noqa: PTH207 - what it stands for

    def __getattr__(self, name: str) -> Any:
        return getattr(glob, name)


def serve_musubi(place: str | Path, dataset: Any) -> None:
    """Let a `VideoDataset` of musubi-tuner train from a packed cache; call it before `prepare_for_training`.

    The modules that list and load its files are told of the packed ones, in this process and those it forks.
    """
    cache = _opened(place, "musubi-wan", "musubi-hv", "musubi-hv15")
    from safetensors.torch import load

    listing: Any = sys.modules[type(dataset).__module__]
    loading: Any = importlib.import_module(f"{listing.__name__.rpartition('.')[0]}.bucket")
    names = {str(cache.others / path): path for path in cache.paths}
    before = loading.load_file

    def load_file(path: str, *rest: Any, **more: Any) -> dict[str, Tensor]:
        return load(cache.open(names[path]).read()) if path in names else before(path, *rest, **more)

    served = listing.glob.names if isinstance(listing.glob, _PackedGlob) else {}  # of data sets before this one
    listing.glob, loading.load_file = _PackedGlob({**served, **names}), load_file
    dataset.cache_directory = str(cache.others)
