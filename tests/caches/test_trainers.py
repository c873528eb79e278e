# SPDX-License-Identifier: Apache-2.0
"""Trainers read what comes back: by a transcription of what their readers expect, and by the readers themselves.

The readers themselves run where INLAY_TRAINERS names a folder with checkouts called musubi-tuner, DiffSynth-Studio,
LTX-2 and FastVideo, and where the packages they import are at hand.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from inlay.caches import (
    DiffSynthDataset,
    FastVideoDataset,
    LtxDataset,
    PackedCache,
    SimpleTunerFiles,
    pack_cache,
    serve_musubi,
    unpack_cache,
)
from inlay.errors import UsageError
from tests.caches import genuine


@pytest.fixture
def packed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The packed cache of the format that the test is about, with the cache and its unpacked copy beside it."""
    genuine.BUILDERS[request.param](tmp_path / "cache")
    done = pack_cache(str(tmp_path / "cache"), str(tmp_path / "packed"))
    assert str(done).startswith(f"PackResult({tmp_path}/packed: ") and len(str(done)) < 200 + len(str(tmp_path))
    unpack_cache(str(tmp_path / "packed"), str(tmp_path / "back"))
    return tmp_path / "packed"


def about(format: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("packed", [format], indirect=True, ids=[format])


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, whatever is nested in whatever."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# --- what their readers expect, transcribed ---------------------------------------------------------------------------


def read_musubi(folder: Path, arch: str) -> dict[str, dict[str, Tensor]]:
    """By name: glob, split on underscores, text beside it; keys lose dtype and FxHxW."""
    from safetensors.torch import load_file

    found = {}
    for path in sorted(folder.glob(f"*_{arch}.safetensors")):
        parts = path.name.split("_")
        width, height = map(int, parts[-2].split("x"))
        start, frames = map(int, parts[-3].split("-")[:2])
        assert (width, height, start, frames) == (96, 64, 0, 17)
        stem = "_".join(parts[:-3])
        tensors = load_file(path) | load_file(folder / f"{stem}_{arch}_te.safetensors")
        kinds = {}
        for key, value in tensors.items():
            key = key.removeprefix("varlen_")
            if not key.endswith("_mask"):
                key = key.rsplit("_", 1)[0]
                key = key.rsplit("_", 1)[0] if key.startswith("latents_") else key
            kinds[key] = value
        found[stem] = kinds
    return found


@pytest.mark.parametrize(
    ("packed", "arch", "keys", "dtype"),
    [
        ("musubi-wan", "wan", ["latents", "t5"], torch.bfloat16),
        ("musubi-hv", "hv", ["latents", "clipL", "llm", "llm_mask"], torch.float16),
    ],
    indirect=["packed"],
)
def test_musubi(packed: Path, arch: str, keys: list[str], dtype: torch.dtype) -> None:
    before, after = read_musubi(packed.parent / "cache", arch), read_musubi(packed.parent / "back", arch)
    assert before.keys() == after.keys() == {"clip_0", "clip_1", "clip_2"}
    for stem, clip in after.items():
        assert sorted(clip) == sorted(keys)
        assert clip["latents"].dtype == dtype and clip["latents"].shape == (16, 5, 8, 12)
        assert same({k: v for k, v in clip.items() if k != "latents"},
                    {k: v for k, v in before[stem].items() if k != "latents"})  # fmt: skip


@about("diffsynth")
def test_diffsynth(packed: Path) -> None:
    data = DiffSynthDataset(packed, repeat=2)
    assert data.load_from_cache and len(data) == 6
    assert repr(data).startswith("DiffSynthDataset(6 samples of PackedCache(3 files, diffsynth")
    loader = DataLoader(data, collate_fn=lambda x: x[0], num_workers=1)  # as the trainer makes it
    for number, read in enumerate(loader):
        path = data.paths[number % 3]
        shared, positive, negative = read
        assert same(read, torch.load(packed.parent / "back" / path, weights_only=False))
        before = torch.load(packed.parent / "cache" / path, weights_only=False)
        assert list(shared) == list(before[0]) and negative == {}
        assert shared["input_latents"].shape == (1, 16, 5, 8, 12) and shared["input_latents"].dtype == torch.bfloat16
        assert same(positive, before[1])
        assert not set(shared) & set(positive), "no key in both dictionaries"
    with pytest.raises(IndexError):
        data[6]


def test_diffsynth_files_with_more_than_tensors_ask_for_trust(tmp_path: Path) -> None:
    """The caches of image-to-video models may hold the picture itself."""
    (path,) = genuine.diffsynth(tmp_path / "cache", 1)
    shared, positive, negative = torch.load(path, weights_only=False)
    torch.save((shared | {"input_image": Path("picture")}, positive, negative), path)
    pack_cache(tmp_path / "cache", tmp_path / "packed")
    with pytest.raises(UsageError, match=r"0/0\.pth holds more than tensors, such as pictures; give trust=True"):
        DiffSynthDataset(tmp_path / "packed")[0]
    assert DiffSynthDataset(tmp_path / "packed", trust=True)[0][0]["input_image"] == Path("picture")


@about("ltx")
def test_ltx(packed: Path) -> None:
    data = LtxDataset(packed)
    assert len(data) == 3 and repr(data).startswith("LtxDataset(3 samples with latents, conditions, of PackedCache(")
    for number in range(3):
        read = data[number]
        assert list(read) == ["latent_conditions", "text_conditions", "idx"] and read["idx"] == number
        latents = read["latent_conditions"]
        assert list(latents) == ["latents", "num_frames", "height", "width", "fps"]
        assert latents["latents"].shape == (128, latents["num_frames"], latents["height"], latents["width"])
        assert latents["latents"].dtype == torch.bfloat16 and latents["fps"] == 24.0
        beside = packed.parent / "cache/.precomputed/conditions" / f"walks/clip_{number}.pt"
        assert same(read["text_conditions"], torch.load(beside))
    assert [list(LtxDataset(packed, ["latents"])[0])] == [["latents", "idx"]]
    with pytest.raises(UsageError, match="no clip has all of"):
        LtxDataset(packed, ["latents", "audio_latents"])
    batch = next(iter(DataLoader(data, batch_size=1, num_workers=1)))
    assert batch["latent_conditions"]["latents"].shape == (1, 128, 5, 8, 12)


@about("simpletuner")
def test_simpletuner(packed: Path) -> None:
    files = SimpleTunerFiles(packed, "somewhere/vae")
    names = files.list_files()
    assert repr(files).startswith("SimpleTunerFiles(PackedCache(3 files, ")
    assert len(names) == 3 and all(files.exists(name) for name in names)
    for name in names:
        path = Path(name).relative_to(Path("somewhere/vae").absolute())
        assert same(files.torch_load(name), torch.load(packed.parent / "back" / path))
        assert files.torch_load(name).shape == (16, 5, 8, 12)
    with pytest.raises(FileNotFoundError):
        files.torch_load("elsewhere/x.pt")


@about("fastvideo")
def test_fastvideo(packed: Path) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    data = FastVideoDataset(packed)
    assert len(data) == 3 and repr(data).startswith("FastVideoDataset(3 rows of PackedCache(")
    back = [row for p in sorted((packed.parent / "back").rglob("*.parquet")) for row in pq.read_table(p).to_pylist()]
    before = [row for p in sorted((packed.parent / "cache").rglob("*.parquet")) for row in pq.read_table(p).to_pylist()]
    rows = data.__getitems__([0, 1, 2])
    for row, unpacked, original in zip(rows, back, before, strict=True):
        assert row == unpacked
        z = np.frombuffer(row["vae_latent_bytes"], dtype=np.float32).reshape(row["vae_latent_shape"])
        assert z.shape == (16, 5, 8, 12) and row["num_frames"] == 5 and row["vae_latent_dtype"] == "float32"
        assert {k: v for k, v in row.items() if k != "vae_latent_bytes"} == {
            k: v for k, v in original.items() if k != "vae_latent_bytes"
        }


MUSUBI_LISTING = """
import glob
class VideoDataset:
    def __init__(self, folder):
        self.cache_directory = folder
    def prepare_for_training(self):
        from .bucket import BucketBatchManager
        names = glob.glob(self.cache_directory + "/*_wan.safetensors")
        self.batch_manager = BucketBatchManager(sorted(names))
"""
MUSUBI_LOADING = """
from safetensors.torch import load_file
class BucketBatchManager:
    def __init__(self, names):
        self.names = names
    def __getitem__(self, i):
        stem = "_".join(self.names[i].split("_")[:-3])
        return {**load_file(self.names[i]), **load_file(stem + "_wan_te.safetensors")}
"""


def musubi_like(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules that list and load as musubi-tuner's do: by `glob.glob` of one, by `load_file` of the other."""
    home = tmp_path / "code" / name / "dataset"
    home.mkdir(parents=True)
    (home / "image_video_dataset.py").write_text(MUSUBI_LISTING)
    (home / "bucket.py").write_text(MUSUBI_LOADING)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    return importlib.import_module(f"{name}.dataset.image_video_dataset")


@about("musubi-wan")
def test_musubi_is_served(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = musubi_like("musubi_one", tmp_path, monkeypatch)
    data = listing.VideoDataset(str(tmp_path / "nowhere"))
    serve_musubi(packed, data)
    data.prepare_for_training()
    before = read_musubi(packed.parent / "back", "wan")
    assert len(data.batch_manager.names) == 3
    for i in range(3):
        read = data.batch_manager[i]
        assert same(read["latents_5x8x12_bfloat16"], before[f"clip_{i}"]["latents"])
        assert same(read["varlen_t5_bfloat16"], before[f"clip_{i}"]["t5"])


@about("musubi-wan")
def test_several_musubi_data_sets_are_served(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a TOML with two of them: all are told of their caches before the first one lists its files."""
    listing = musubi_like("musubi_two", tmp_path, monkeypatch)
    genuine.BUILDERS["musubi-wan"](tmp_path / "more", 2)
    pack_cache(tmp_path / "more", tmp_path / "packed more")
    one, other = (listing.VideoDataset(str(tmp_path / "nowhere")) for _ in range(2))
    serve_musubi(packed, one)
    serve_musubi(tmp_path / "packed more", other)
    for data, count in ((one, 3), (other, 2)):
        data.prepare_for_training()
        assert len(data.batch_manager.names) == count
        assert all("latents_5x8x12_bfloat16" in data.batch_manager[i] for i in range(count))


@about("ltx")
def test_readers_refuse_caches_of_others(packed: Path) -> None:
    with pytest.raises(UsageError, match="holds a cache of ltx, and this reads diffsynth"):
        DiffSynthDataset(packed)
    with pytest.raises(UsageError, match="musubi"):
        serve_musubi(packed, object())
    with pytest.raises(UsageError, match="holds no file"):
        PackedCache(packed).open("nothing.pt")


@about("ltx")
def test_files_are_named_as_text_or_as_paths_and_lie_in_the_cache(packed: Path) -> None:
    cache = PackedCache(packed)
    name = cache.paths[0]
    assert torch.equal(cache.latents(Path(name)), cache.latents(name))
    assert cache.open(Path(name)).read() == cache.open(name).read()
    for outside in ("../cache.json", "/etc/hostname"):
        with pytest.raises(UsageError, match="lies outside the cache"):
            cache.open(outside)
    wrong: Any = [name]
    with pytest.raises(UsageError, match=r"source is a path or an address; .+; got list"):
        pack_cache(wrong, packed.parent / "out")


# --- the readers themselves -------------------------------------------------------------------------------------------

OWN = {
    "musubi-wan": (
        "musubi-tuner/src",
        """
from multiprocessing import Value
from musubi_tuner.dataset.image_video_dataset import VideoDataset
def read(folder, packed):
    data = VideoDataset((96, 64), None, 1, 1, False, False, target_frames=[17], video_directory=folder,
                        cache_directory=folder, architecture="wan")
    if packed:
        from inlay.caches import serve_musubi
        serve_musubi(packed, data)
    data.set_seed(0, Value("i", 0))
    data.prepare_for_training()
    found = [data[i] for i in range(len(data))]
    return sorted(found, key=lambda b: len(b["t5"][0]))
""",
    ),
    "diffsynth": (
        "DiffSynth-Studio/diffsynth/core",
        """
from data import UnifiedDataset
def read(folder, packed):
    if packed:
        from inlay.caches import DiffSynthDataset
        data = DiffSynthDataset(packed)
    else:
        data = UnifiedDataset(folder, metadata_path=None)
    found = [data[i] for i in range(len(data))]
    return sorted(found, key=lambda read: int((read[1]["context"] != 0).any(-1).sum()))
""",
    ),
    "ltx": (
        "LTX-2/packages/ltx-trainer/src",
        """
from ltx_trainer.datasets import PrecomputedDataset
def read(folder, packed):
    if packed:
        from inlay.caches import LtxDataset
        data = LtxDataset(packed)
    else:
        data = PrecomputedDataset(folder)
    return [data[i] for i in range(len(data))]
""",
    ),
    "fastvideo": (
        "FastVideo/fastvideo/dataset",
        """
import importlib.util, sys
from pathlib import Path
import pyarrow.parquet as pq
def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
here = next(Path(p) for p in sys.path if p.endswith("fastvideo/dataset"))
utils, schema = load(here / "utils.py"), load(here / "dataloader/schema.py").pyarrow_schema_t2v
def read(folder, packed):
    collate = lambda rows: utils.collate_rows_from_parquet_schema(rows, schema, 512)
    if packed:
        from inlay.caches import FastVideoDataset
        return FastVideoDataset(packed, collate=collate).__getitems__([0, 1, 2])
    return collate([row for p in sorted(Path(folder).rglob("*.parquet")) for row in pq.read_table(p).to_pylist()])
""",
    ),
}
SCRIPT = """
import pickle, sys
{read}
root = sys.argv[1]
found = {{name: read(root + "/" + name, None) for name in ("cache", "back")}}
found["packed"] = read(root + "/back", root + "/packed")
pickle.dump(found, open(root + "/found.pkl", "wb"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("packed", list(OWN), indirect=True)
def test_the_trainers_own_readers(packed: Path, request: pytest.FixtureRequest) -> None:
    """On the cache, on its unpacked copy, and with the packed one in its place: same structure, same latents."""
    name = request.node.callspec.params["packed"]
    place, script = OWN[name]
    home = os.environ.get("INLAY_TRAINERS")
    if home is None or not Path(home, place).is_dir():
        pytest.skip(f"no checkout of {place.partition('/')[0]} at hand: name their folder in INLAY_TRAINERS")
    paths = [str(Path(home, place)), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(read=script), str(packed.parent)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"{place.partition('/')[0]}: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found = pickle.loads((packed.parent / "found.pkl").read_bytes())
    assert same(found["back"], found["packed"])
    assert structure(found["cache"]) == structure(found["back"])
    assert not same(found["cache"], found["back"])


def structure(read: Any) -> Any:
    """Keys, shapes and dtypes of what a reader gave."""
    if isinstance(read, Tensor):
        return list(read.shape), str(read.dtype)
    if isinstance(read, dict):
        return {key: structure(value) for key, value in read.items()}
    return [structure(value) for value in read] if isinstance(read, list | tuple) else read
