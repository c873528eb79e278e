# SPDX-License-Identifier: Apache-2.0
"""Unpacking among other jobs, into folders that hold something, of names that are no text, and of hostile caches."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inlay.caches import PackedCache, pack_cache
from inlay.caches.holes import FREE_BYTES, CacheError
from inlay.caches.rest import pack_rest, unpack_rest
from inlay.caches.sums import Checksum, dump_checksums
from tests.caches import genuine
from tests.conftest import Run

LITTLE = 64 << 20  # bytes that a refusal may take
FILES = "files.jsonl"
LISTS = [FILES, "checksums.jsonl", "dataset.json"]
Change = Callable[[dict[str, Any]], None]  # of a description that was read


def contents(root: Path) -> dict[str, bytes]:
    return {os.fspath(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def refused(answer: tuple[int, str, str], code: int, said: str) -> None:
    """With this exit code, and one line of a length that one can read."""
    found, out, err = answer
    assert found == code, err
    assert said in err and err.count("\n") == 1 and len(err) < 1000, err
    assert out == ""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed cache of small clips, with a file that is carried along."""
    root = tmp_path_factory.mktemp("made")
    genuine.simpletuner(root / "cache")
    (root / "cache" / "notes.txt").write_text("mine")
    pack_cache(root / "cache", root / "packed")
    return root / "packed"


@pytest.fixture
def packed(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(made, tmp_path / "packed")
    return tmp_path / "packed"


# --- two jobs, and jobs that were killed ------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A packed cache whose unpacking lasts long enough to be met: what is carried along comes last."""
    genuine.simpletuner(tmp_path / "cache")
    with (tmp_path / "cache" / "video.mp4").open("wb") as file:
        file.truncate(128 << 20)
        file.write(b"end")
    pack_cache(tmp_path / "cache", tmp_path / "packed")
    return tmp_path / "packed"


def stopped(packed: Path, out: Path) -> subprocess.Popen[bytes]:
    """An unpacking that stands still with one file half-written."""
    job = subprocess.Popen([sys.executable, "-m", "inlay", "cache", "unpack", str(packed), str(out), "-q"])
    while not list(out.glob(".video.mp4.*.part")):
        assert job.poll() is None, "the unpacking ended before it was met"
        time.sleep(0.002)
    job.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, job.pid, os.WSTOPPED | os.WNOWAIT)
    assert list(out.glob(".video.mp4.*.part")), "the unpacking ended before it was met"
    return job


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks and signals")
def test_two_unpackings_into_one_folder(large: Path, tmp_path: Path, run: Run) -> None:
    """The second is refused and takes nothing from the first, which ends as if it were alone."""
    out = tmp_path / "out"
    first = stopped(large, out)
    try:
        before = contents(out)
        refused(run("cache", "unpack", large, out, "-q"), 2, "another job is writing to")
        assert contents(out) == before
    finally:
        first.send_signal(signal.SIGCONT)
        code = first.wait()
    assert code == 0
    assert run("cache", "unpack", large, tmp_path / "alone", "-q")[0] == 0
    assert contents(out) == contents(tmp_path / "alone")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_what_a_killed_unpacking_left_is_removed_and_nothing_else(large: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    job = stopped(large, out)
    job.kill()
    job.wait()
    whole = {path: path.stat().st_mtime_ns for path in out.rglob("*.pt")}
    assert len(whole) == 3
    alike = [
        out / ".video.mp4.part",
        out / ".video.mp4.0123456789AB.part",  # ours are of small letters
        out / ".video.mp4.0123456789abc.part",
        out / ".video.mp4.0123456789ab.part.txt",
        out / "video.mp4.0123456789ab.part",
        out / ".other.mp4.0123456789ab.part",
        out / "walks" / ".video.mp4.0123456789ab.part",  # the file lies in another folder
        out / ".video.mp4.ffffffffffff.part" / "inside",
    ]
    for path in alike:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    assert run("cache", "unpack", large, out, "-q")[0] == 0
    assert all(path.read_bytes() == b"mine" for path in alike)
    assert whole == {path: path.stat().st_mtime_ns for path in out.rglob("*.pt")}, "what was done is not done again"
    assert run("cache", "unpack", large, tmp_path / "alone", "-q")[0] == 0
    mine = {os.fspath(path.relative_to(out)) for path in alike}
    assert {name: data for name, data in contents(out).items() if name not in mine} == contents(tmp_path / "alone")


def test_files_that_are_called_like_parts_are_carried_along(tmp_path: Path, run: Run) -> None:
    genuine.simpletuner(tmp_path / "cache")
    (tmp_path / "cache" / "notes.part").write_bytes(b"mine")
    for _ in range(2):
        assert run("cache", "pack", tmp_path / "cache", tmp_path / "packed", "-q")[0] == 0
    assert run("cache", "unpack", tmp_path / "packed", tmp_path / "back", "-q")[0] == 0
    assert (tmp_path / "back" / "notes.part").read_bytes() == b"mine"


# --- what is there already --------------------------------------------------------------------------------------------


def another_size(path: Path) -> None:
    path.write_bytes(b"of mine")


def folder(path: Path) -> None:
    path.mkdir()


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def link_to_another_file(path: Path) -> None:
    path.with_name("real").write_bytes(b"of mine")
    path.symlink_to("real")


@pytest.mark.parametrize("name", ["latents", "notes.txt"])
@pytest.mark.parametrize("there", [another_size, folder, link_to_nothing, link_to_another_file])
def test_nothing_that_is_there_is_overwritten(packed: Path, tmp_path: Path, run: Run, name: str, there) -> None:
    out = tmp_path / "out"
    target = out / (PackedCache(packed).paths[1] if name == "latents" else name)
    target.parent.mkdir(parents=True)
    there(target)
    kept = sorted((p.name, p.is_symlink(), p.read_bytes() if p.is_file() else None) for p in target.parent.iterdir())
    refused(run("cache", "unpack", packed, out, "-q"), 2, "is another file; give a folder of its own")
    after = sorted((p.name, p.is_symlink(), p.read_bytes() if p.is_file() else None) for p in target.parent.iterdir())
    assert set(kept) <= set(after)
    assert not (target.parent / "nowhere").exists()


@pytest.mark.parametrize("where", ["out", "out/walks"])
def test_a_file_where_a_folder_is_needed(packed: Path, tmp_path: Path, run: Run, where: str) -> None:
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).write_bytes(b"mine")
    assert run("cache", "unpack", packed, tmp_path / "out", "-q")[0] == 6
    assert (tmp_path / where).read_bytes() == b"mine"


# --- hostile lists ----------------------------------------------------------------------------------------------------


def seal(packed: Path, *more: dict[str, Any]) -> None:
    """Make all checksums right again, as whoever means harm would."""
    lines = [json.loads(line) for line in (packed / "checksums.jsonl").read_text().splitlines()[:-1]]
    lines = [
        {"path": line["path"], "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for line in lines
        for data in [(packed / line["path"]).read_bytes()]
    ]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, *more])
    own = {"path": "checksums.jsonl", "bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (packed / "checksums.jsonl").write_text(text + json.dumps(own) + "\n")


def change_files(packed: Path, change: Change) -> None:
    """Change the first line of `files.jsonl`."""
    first, *others = (packed / FILES).read_text().splitlines(keepends=True)
    line = json.loads(first)
    change(line)
    (packed / FILES).write_text("".join([json.dumps(line) + "\n", *others]))


def name_file(packed: Path, listed: str, name: object) -> None:
    """Put the name of a file into one of the lists."""
    if listed == FILES:
        change_files(packed, lambda line: line.update(path=name))
    elif listed == "dataset.json":
        record = json.loads((packed / listed).read_text())
        record["shards"][0]["name"] = name
        (packed / listed).write_text(json.dumps(record))
    seal(packed, *([{"path": name, "bytes": 1, "sha256": "0" * 64}] if listed == "checksums.jsonl" else []))


@pytest.mark.parametrize("listed", LISTS)
@pytest.mark.parametrize(
    "name", ["../out.txt", "a/../../out.txt", "..", "/OUT/out.txt", "", ".", "./a", "a//b", "a/", "a\0b"]
)
def test_names_that_lead_out_are_refused(packed: Path, tmp_path: Path, run: Run, listed: str, name: str) -> None:
    name_file(packed, listed, name.replace("/OUT", os.fspath(tmp_path / "evil")))
    refused(run("cache", "unpack", packed, tmp_path / "out" / "deep", "-q"), 4, "which leads out of the cache")
    assert {path.name for path in tmp_path.iterdir()} == {"packed"}
    assert run("cache", "verify", packed, "-q")[0] == 4


@pytest.mark.parametrize("listed", LISTS)
@pytest.mark.parametrize("name", ["\ud800", 5, None, ["a"], {"a": 1}], ids=ascii)  # the first is half a character
def test_names_that_are_none_are_refused(packed: Path, tmp_path: Path, run: Run, listed: str, name: object) -> None:
    name_file(packed, listed, name)
    refused(run("cache", "unpack", packed, tmp_path / "out", "-q"), 4, "is damaged (")
    assert {path.name for path in tmp_path.iterdir()} == {"packed"}
    assert run("cache", "verify", packed, "-q")[0] == 4


@pytest.mark.parametrize("name", ["files//OUT/evil", "files/../../evil", "files/", "files/.", "files/./a", "files/a/"])
def test_names_below_files_do_not_lead_out_either(packed: Path, tmp_path: Path, run: Run, name: str) -> None:
    """Of `files//x/evil` the part below `files/` is absolute."""
    name_file(packed, "checksums.jsonl", name.replace("OUT", os.fspath(tmp_path / "made").lstrip("/")))
    refused(run("cache", "unpack", packed, tmp_path / "out", "-q"), 4, "which leads out of the cache")
    assert {path.name for path in tmp_path.iterdir()} == {"packed"}


def test_shards_that_lead_out_are_not_read(packed: Path, tmp_path: Path, run: Run) -> None:
    shutil.copytree(packed / "shards", tmp_path / "shards")
    change_files(packed, lambda line: line.update(shard=f"../{line['shard']}"))
    seal(packed)
    refused(run("cache", "unpack", packed, tmp_path / "out", "-q"), 4, "which leads out of the cache")


@pytest.mark.parametrize(
    "facts",
    [{"bytes": -1}, {"bytes": "1"}, {"bytes": True}, {"rest_offset": 1 << 60}, {"rest_bytes": 1 << 60},
     {"rest_bytes": 1.5}, {"clips": []}, {"clips": [[0, 1 << 60]]}, {"clips": [[0, 1], [0, 1]]}, {"clips": [[1]]},
     {"clips": 5}, {"bytes": 7}],
    ids=str,
)  # fmt: skip
def test_places_that_make_no_sense(packed: Path, tmp_path: Path, run: Run, facts: dict[str, Any]) -> None:
    change_files(packed, lambda line: line.update(facts))
    seal(packed)
    answer, peak = measured(lambda: run("cache", "unpack", packed, tmp_path / "out", "-q"))
    refused(answer, 4, "")
    assert peak < LITTLE
    assert contents(tmp_path / "out") == {}


# --- hostile shards ---------------------------------------------------------------------------------------------------


def forge(packed: Path, *, rest: bytes | None = None, tokens: bytes | None = None) -> str:
    """Give the first file another rest or other tokens, with every checksum right; returns its path."""
    path = PackedCache(packed).paths[0]
    shard = packed / PackedCache(packed).files[path].shard
    size = shard.stat().st_size
    with shard.open("ab") as file:
        file.write((rest or b"") + (tokens or b""))

    def change(line: dict[str, Any]) -> None:
        if rest is not None:
            line.update(rest_offset=size, rest_bytes=len(rest))
        if tokens is not None:
            line.update(clips=[[size + len(rest or b""), len(tokens)]])

    change_files(packed, change)
    record = json.loads((packed / "dataset.json").read_text())
    record["shards"][0] |= {"bytes": shard.stat().st_size, "sha256": hashlib.sha256(shard.read_bytes()).hexdigest()}
    (packed / "dataset.json").write_text(json.dumps(record))
    seal(packed)
    return path


def measured(work: Callable[[], Any]) -> tuple[Any, int]:
    """What it returns, and the most memory that Python and NumPy took for it."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_refused(packed: Path, out: Path, run: Run, path: str, said: str) -> None:
    """In one line and little memory, by unpack and by verify; nothing half-written stays."""
    answer, peak = measured(lambda: run("cache", "unpack", packed, out, "-q"))
    refused(answer, 4, said)
    assert peak < LITTLE
    assert contents(out) == {}
    (code, told, _), peak = measured(lambda: run("cache", "verify", packed, "--json"))
    assert code == 4 and peak < LITTLE
    problems = json.loads(told)["problems"]
    assert [problem.split(":")[0] for problem in problems] == [path]
    assert said in problems[0] and len(problems[0]) < 1000


def rest_of(packed: Path) -> tuple[dict[str, Any], bytes]:
    cache = PackedCache(packed)
    return unpack_rest(cache.rest(cache.paths[0]))


def test_the_forger_s_tools_work(packed: Path, tmp_path: Path, run: Run) -> None:
    """The same parts at another place are no harm: what is refused below is refused for what it says."""
    forge(packed, rest=pack_rest(*rest_of(packed)))
    assert run("cache", "verify", packed, "-q")[0] == 0
    assert run("cache", "unpack", packed, tmp_path / "out", "-q")[0] == 0


HOLES: list[tuple[dict[str, Any], str]] = [
    *[({name: bad}, "makes no sense") for name in ("offset", "length", "start", "between")
      for bad in (-1, 1 << 60, 1.5, "5", None, True)],
    ({"offset": 1 << 40}, "lie outside its"),
    ({"length": 10}, "cannot hold"),
    ({"length": 1 << 40}, "that were not packed"),
    ({"length": 1 << 40, "between": (1 << 40) - 15360}, "lie outside its"),
    ({"start": 1}, "cannot hold"),
    ({"start": 1 << 40}, "cannot hold"),
    ({"between": 1}, "cannot hold"),
    ({"shape": [16, 5, 8, 13]}, "cannot hold"),
    ({"shape": [16, 5, 8, 11]}, "its tokens make"),
    ({"shape": [16, 5, 0, 12]}, "cannot hold"),
    ({"shape": [16, 5, 8, -12]}, "makes no sense"),
    ({"shape": [1 << 40, 1, 1, 1]}, "cannot hold"),
    ({"shape": [1] * 100_000, "stride": [1] * 100_000}, "100,000 dimensions"),
    ({"shape": [], "stride": []}, "cannot hold"),
    ({"shape": [16, 5, 8]}, "says nothing of its latents"),
    ({"shape": "abcd"}, "makes no sense"),
    ({"shape": 5}, "says nothing of its latents"),
    ({"shape": [[16], 5, 8, 12]}, "makes no sense"),
    ({"stride": [480, 96, 12, 0]}, "cannot hold"),  # one number for many
    ({"stride": [480, 96, 11, 1]}, "cannot hold"),  # on top of one another
    ({"stride": [1 << 40, 96, 12, 1]}, "cannot hold"),
    ({"stride": [480, 96, 12, -1]}, "makes no sense"),
    ({"checksums": [1 << 40]}, "lie outside its"),
    ({"checksums": [-1]}, "makes no sense"),
    ({"checksums": ["a"]}, "makes no sense"),
    ({"checksums": 5}, "says nothing of its latents"),
    ({"dtype": "I64"}, "has latents of I64"),
    ({"dtype": "X" * 100_000}, "has latents of X"),
    ({"dtype": "F32"}, "cannot hold"),
    ({"dtype": {}}, "says nothing of its latents"),
    ({"more": 1}, "says nothing of its latents"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "said"), HOLES, ids=lambda value: str(value)[:40])
def test_hostile_holes(packed: Path, tmp_path: Path, run: Run, facts: dict[str, Any], said: str) -> None:
    head, rest = rest_of(packed)
    path = forge(packed, rest=pack_rest(head | {"hole": head["hole"] | facts}, rest))
    check_refused(packed, tmp_path / "out", run, path, said)


def test_a_hole_that_is_larger_than_it_was(packed: Path, tmp_path: Path, run: Run) -> None:
    """It may have gaps, as holes of earlier releases have; but the file would be of another size."""
    head, rest = rest_of(packed)
    forge(packed, rest=pack_rest(head | {"hole": head["hole"] | {"length": 20_000}}, rest))
    refused(run("cache", "unpack", packed, tmp_path / "out", "-q"), 4, "would come back as")
    assert contents(tmp_path / "out") == {}
    assert run("cache", "verify", packed, "-q")[0] == 4


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({}, "the kind of its file is None"),
        ({"kind": "other"}, "the kind of its file is 'other'"),
        ({"kind": ["hole"]}, "the kind of its file is ['hole']"),
        ({"kind": "x" * 100_000}, "the kind of its file is 'xxx"),
        ({"kind": "hole"}, "says nothing of its latents"),
        ({"kind": "hole", "hole": []}, "says nothing of its latents"),
        ({"kind": "hole", "hole": {}}, "says nothing of its latents"),
        ({"kind": "parquet"}, "is not a whole Parquet file"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_hostile_heads(packed: Path, tmp_path: Path, run: Run, head: dict[str, Any], said: str) -> None:
    path = forge(packed, rest=pack_rest(head, rest_of(packed)[1]))
    check_refused(packed, tmp_path / "out", run, path, said)


def promise(length: int, *, head: bytes = b"{}", size: int | None = None, crc: int = 0) -> bytes:
    """A rest that says it is of so many zeros, and holds no block of them."""
    start = struct.pack("<4sIQI", b"rst1", len(head) if size is None else size, length, crc)
    return start + head + bytes(min(-(-length // 4096 // 8), 1 << 20))


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"rst1",
        promise(1 << 33),
        promise((1 << 64) - 1),
        promise(FREE_BYTES + 1),
        promise(10, size=(1 << 32) - 1),
        promise(10, head=b"[]"),
        promise(10, head=b"[" * 100_000),
        promise(10, head=b"9" * 100_000),
        promise(4096, crc=zlib.crc32(bytes(4096)) ^ 1),
        promise(4097, crc=zlib.crc32(bytes(4097))),
    ],
    ids=lambda rest: f"{len(rest)} bytes",
)
def test_rests_that_promise_what_they_have_not(packed: Path, tmp_path: Path, run: Run, rest: bytes) -> None:
    path = forge(packed, rest=rest)
    check_refused(packed, tmp_path / "out", run, path, "the part of a shard beside the tokens")


def test_what_pack_writes_can_be_read_back() -> None:
    """The same limit at both ends: a file of zeros that could not come back is not packed."""
    most = bytes(FREE_BYTES)
    assert unpack_rest(pack_rest({}, most))[1] == most
    with pytest.raises(CacheError, match="nearly all of them zeros; save it without them"):
        pack_rest({}, most + bytes(1))


@pytest.mark.parametrize(
    ("shape", "said"),
    [((48, 5, 8, 12), "has tokens of 48 channels"), ((16, 6, 8, 12), "and its tokens make [16, 6, 8, 12]")],
)
def test_tokens_that_do_not_fit(packed: Path, tmp_path: Path, run: Run, shape: tuple[int, ...], said: str) -> None:
    """The tokens of another model, or of another clip."""
    channels, slots, _, _ = shape
    (tmp_path / "cache").mkdir()
    torch.save(genuine.latents(0, channels, slots=slots).bfloat16(), tmp_path / "cache" / "clip.pt")
    pack_cache(tmp_path / "cache", tmp_path / "others")
    file = PackedCache(tmp_path / "others").files["clip.pt"]
    offset, size = file.clips[0]
    path = forge(packed, tokens=(tmp_path / "others" / file.shard).read_bytes()[offset : offset + size])
    check_refused(packed, tmp_path / "out", run, path, said)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"place": -1}, "says nothing of its table"),
        ({"place": 1 << 60}, "says nothing of its table"),
        ({"place": "0"}, "says nothing of its table"),
        ({"place": True}, "says nothing of its table"),
        ({"codec": "LZO"}, "says nothing of its table"),
        ({"codec": ["ZSTD"]}, "says nothing of its table"),
        ({"kind": "hole", "hole": None}, "there are tokens of 2"),
    ],
    ids=str,
)
def test_hostile_tables(tmp_path: Path, run: Run, facts: dict[str, Any], said: str) -> None:
    pytest.importorskip("pyarrow")
    genuine.fastvideo(tmp_path / "cache")
    pack_cache(tmp_path / "cache", tmp_path / "packed")
    head, rest = rest_of(tmp_path / "packed")
    path = forge(tmp_path / "packed", rest=pack_rest(head | facts, rest))
    check_refused(tmp_path / "packed", tmp_path / "out", run, path, said)


def test_tables_of_other_rows_and_of_none(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("pyarrow")
    genuine.fastvideo(tmp_path / "cache")
    pack_cache(tmp_path / "cache", tmp_path / "packed")
    cache = PackedCache(tmp_path / "packed")
    path = forge(tmp_path / "packed", rest=cache.rest(cache.paths[1]))  # of one row, and there are two clips
    check_refused(tmp_path / "packed", tmp_path / "out", run, path, "its table has 1 rows, and there are 2 clips")
    head, rest = unpack_rest(cache.rest(path))
    forge(tmp_path / "packed", rest=pack_rest(head, rest[:-50]))
    check_refused(tmp_path / "packed", tmp_path / "out", run, path, "is not a whole Parquet file")


# --- names that are no text -------------------------------------------------------------------------------------------


def named(folder: Path, name: bytes) -> Path:
    """A file by the bytes of its name."""
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))


@pytest.mark.skipif(sys.platform != "linux", reason="names are text there")
def test_names_that_are_no_text(tmp_path: Path, run: Run) -> None:
    """What is carried along comes back under the same bytes; latents go to quarantine, and so come back as well."""
    cache, packed, back = tmp_path / "cache", tmp_path / "packed", named(tmp_path, b"b\xe4ck")
    clip = genuine.musubi_wan(cache)[0]
    latents = b"caf\xe9_00000-017_0096x0064_wan.safetensors"
    shutil.copy(clip, named(cache, latents))
    named(cache, b"\xff").mkdir()
    others = [b"\xff/no\xfetes.txt", b"two\nlines.txt", "line\u2028end.txt".encode(), b"back\\slash.txt", b"c:txt"]
    for name in others:
        named(cache, name).write_bytes(b"of " + name)
    assert run("cache", "pack", cache, packed, "-q")[0] == 0
    assert "caf\\xe9_00000" in (packed / "quarantine.csv").read_text()
    assert "a name that is no text" in (packed / "quarantine.csv").read_text()
    assert run("cache", "verify", packed, "--against", cache, "-q")[0] == 0
    for before in (0, 12):
        code, said, _ = run("cache", "unpack", packed, back, "--json")
        assert code == 0 and json.loads(said)["files_before"] == before
        said.encode()  # is text
    for name in [latents, *others]:
        assert named(back, name).read_bytes() == named(cache, name).read_bytes()
    assert contents(back).keys() == contents(cache).keys()


@pytest.mark.skipif(sys.platform != "linux", reason="names are text there")
def test_damage_of_a_file_whose_name_is_no_text(tmp_path: Path, run: Run) -> None:
    genuine.simpletuner(tmp_path / "cache")
    named(tmp_path / "cache", b"no\xfetes.txt").write_bytes(b"mine")
    pack_cache(tmp_path / "cache", tmp_path / "packed")
    named(tmp_path / "packed" / "files", b"no\xfetes.txt").write_bytes(b"mime")
    words = [sys.executable, "-m", "inlay", "cache", "unpack", tmp_path / "packed", tmp_path / "out", "-q"]
    job = subprocess.run(words, capture_output=True, check=False)  # with its own streams: those of pytest refuse it
    refused((job.returncode, job.stdout.decode(), job.stderr.decode()), 4, "is damaged")
    code, said, _ = run("cache", "verify", tmp_path / "packed", "--json")
    (problem,) = json.loads(said)["problems"]
    assert code == 4 and problem.startswith("files/no\\xfetes.txt: is damaged")


def test_the_list_of_a_name_that_is_no_text_is_ascii() -> None:
    """It can be read on any system."""
    line = Checksum(path="files/caf\udce9.txt", bytes=1, sha256="0" * 64)
    assert "caf\\udce9" in dump_checksums([line]) and dump_checksums([line]).isascii()
