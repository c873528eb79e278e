# SPDX-License-Identifier: Apache-2.0
"""Checksums of a packed cache: damage of any part is found, said in one line, and can be mended; earlier releases."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from inlay.caches import PackedCache, pack_cache, verify_cache
from inlay.caches.holes import Hole
from inlay.cli.main import main
from tests.caches import genuine

DESCRIPTIONS = ["cache.json", "files.jsonl", "manifest.jsonl", "quarantine.csv", "dataset.json"]
CARRIED = "files/.precomputed/conditions/walks/clip_1.pt"
SHARD = "shards/shard-00000.tar"
CHECKSUMS = "checksums.jsonl"
NOT_UNPACKED = ["manifest.jsonl", "quarantine.csv"]  # unpacking does not look at them


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    genuine.ltx(tmp_path / "cache")
    pack_cache(tmp_path / "cache", tmp_path / "packed")
    return tmp_path / "packed"


def of_an_earlier_release(packed: Path) -> None:
    """Without what earlier releases did not write."""
    (packed / "checksums.jsonl").unlink()
    record = json.loads((packed / "cache.json").read_text())
    del record["checksums"]
    (packed / "cache.json").write_text(json.dumps(record, indent=2) + "\n")


def flip(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 1
    path.write_bytes(data)


def problems(packed: Path) -> list[str]:
    """What verify finds, be it a list or a refusal."""
    try:
        return list(verify_cache(packed).problems)
    except Exception as error:
        return [str(error)]


def unpacked(packed: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["cache", "unpack", str(packed), str(out), "-q"])
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if code else 0)
    return code, said


def files_of(root: Path) -> dict[str, bytes]:
    found = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(("report.", "job/"))}


def test_the_list_has_every_file_but_shards_and_reports(packed: Path) -> None:
    lines = [json.loads(line) for line in (packed / "checksums.jsonl").read_text().splitlines()]
    for line in lines:
        data = (packed / line["path"]).read_bytes()
        if line["path"] == CHECKSUMS:
            data = b"".join(data.splitlines(keepends=True)[:-1])  # of the lines before its own
        assert (line["bytes"], line["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert {line["path"] for line in lines} == files_of(packed).keys() - {SHARD}
    assert verify_cache(packed).problems == ()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("name", [*DESCRIPTIONS, CHECKSUMS, CARRIED, SHARD])
def test_one_flipped_bit_is_found(packed: Path, name: str, share: float, tmp_path: Path, capsys) -> None:
    flip(packed / name, share)
    assert len(problems(packed)) >= 1
    assert main(["cache", "verify", str(packed), "-q"]) == 4
    assert capsys.readouterr().err.count("\n") <= 1
    code, said = unpacked(packed, tmp_path / "back", capsys)
    if name in NOT_UNPACKED:
        assert code == 0 and len(files_of(tmp_path / "back")) == 6
    else:
        assert code == 4 and any(word in said for word in ("damaged", "checksum")), said


@pytest.mark.parametrize("name", [*DESCRIPTIONS, CHECKSUMS, CARRIED, SHARD])
def test_what_is_gone_is_found_and_made_again(packed: Path, name: str, tmp_path: Path, capsys) -> None:
    """After a file was removed, packing again brings all of its bytes back."""
    before = files_of(packed)
    (packed / name).unlink()
    assert main(["cache", "verify", str(packed), "-q"]) in (2, 4)
    assert capsys.readouterr().err.count("\n") <= 1
    code, _ = unpacked(packed, tmp_path / "back", capsys)
    assert code == (0 if name in NOT_UNPACKED else 2 if name in ("cache.json", "files.jsonl") else 4)
    assert main(["cache", "pack", str(tmp_path / "cache"), str(packed), "-q"]) == 0
    assert files_of(packed) == before


@pytest.mark.parametrize("name", [*DESCRIPTIONS, CHECKSUMS])
@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[[[", b"[" * 100_000, b"5\n"])
def test_damaged_descriptions_are_mended_by_packing_again(packed: Path, name: str, data: bytes, tmp_path: Path) -> None:
    before = files_of(packed)
    (packed / name).write_bytes(data)
    assert problems(packed)
    assert main(["cache", "pack", str(tmp_path / "cache"), str(packed), "-q"]) == 0
    assert files_of(packed) == before
    assert verify_cache(packed, against=tmp_path / "cache").problems == ()


def test_a_damaged_cache_json_of_a_job_that_has_not_ended_is_made_again(packed: Path, tmp_path: Path) -> None:
    before = files_of(packed)
    for name in ("checksums.jsonl", "dataset.json"):
        (packed / name).unlink()
    (packed / "cache.json").write_text("{")
    (packed / "job" / "shard-00000.json").write_bytes(b"\xff")
    pack_cache(tmp_path / "cache", packed)
    assert files_of(packed) == before


def test_a_cache_of_a_later_release_is_not_made_again(packed: Path, tmp_path: Path, capsys) -> None:
    (packed / "checksums.jsonl").unlink()
    record = json.loads((packed / "cache.json").read_text()) | {"version": 2}
    (packed / "cache.json").write_text(json.dumps(record))
    before = files_of(packed)
    assert main(["cache", "pack", str(tmp_path / "cache"), str(packed), "-q"]) == 4
    assert "update inlay" in capsys.readouterr().err
    assert files_of(packed) == before


def test_a_damaged_copy_is_not_taken_for_the_file(packed: Path, tmp_path: Path) -> None:
    """Without the list, the checksum is made of the cache's own file, not of the damaged copy."""
    flip(packed / CARRIED, 0.5)
    (packed / "checksums.jsonl").unlink()
    pack_cache(tmp_path / "cache", packed)
    assert [p.split(":")[0] for p in problems(packed)] == [CARRIED]
    (packed / CARRIED).unlink()
    pack_cache(tmp_path / "cache", packed)
    assert problems(packed) == []


def test_every_problem_is_named_once(packed: Path, tmp_path: Path) -> None:
    """Damage here does not hide damage there; a shard with a damaged clip is not named a second time."""
    cache = PackedCache(packed)
    file = cache.files[cache.paths[0]]
    data = bytearray((packed / SHARD).read_bytes())
    data[file.clips[0][0] + 600] ^= 1
    (packed / SHARD).write_bytes(data)
    flip(packed / CARRIED, 0.5)
    flip(packed / "manifest.jsonl", 0.5)
    (tmp_path / "cache" / ".precomputed/conditions/walks/clip_2.pt").write_bytes(b"other")
    found = verify_cache(packed, against=tmp_path / "cache").problems
    assert sorted(problem.split(":")[0] for problem in found) == sorted(
        [cache.paths[0], CARRIED, "manifest.jsonl", ".precomputed/conditions/walks/clip_2.pt"]
    )


def test_a_file_that_changed_in_the_cache_does_not_hide_damage_of_its_shard(packed: Path, tmp_path: Path) -> None:
    genuine_files = sorted((tmp_path / "cache").rglob("latents/**/*.pt"))
    torch.save({"latents": genuine.latents(9, 128).bfloat16()}, genuine_files[0])
    flip(packed / SHARD, 0.999)
    found = verify_cache(packed, against=tmp_path / "cache").problems
    assert len(found) == 2 and "has changed in the cache" in found[0] and SHARD in found[1]


def test_damage_of_the_head_of_a_rest_stops_unpacking(packed: Path, tmp_path: Path, capsys) -> None:
    """Its JSON is under no checksum but that of the shard: a digit of a place may be another one."""
    cache = PackedCache(packed)
    rest = cache.rest(cache.paths[1])
    file = cache.files[cache.paths[1]]
    data = bytearray((packed / SHARD).read_bytes())
    at = file.rest_offset + rest.index(b'"offset":') + 9
    data[at] = data[at] ^ 1
    (packed / SHARD).write_bytes(data)
    code, said = unpacked(packed, tmp_path / "back", capsys)
    assert code == 4 and SHARD in said
    assert not (tmp_path / "back").exists()
    assert len(problems(packed)) == 1


@pytest.mark.parametrize("name", list(genuine.BUILDERS))
def test_caches_of_earlier_releases_are_read(name: str, tmp_path: Path, capsys) -> None:
    genuine.BUILDERS[name](tmp_path / "cache")
    pack_cache(tmp_path / "cache", tmp_path / "packed")
    assert main(["cache", "unpack", str(tmp_path / "packed"), str(tmp_path / "now"), "-q"]) == 0
    of_an_earlier_release(tmp_path / "packed")
    assert verify_cache(tmp_path / "packed", against=tmp_path / "cache").problems == ()
    assert unpacked(tmp_path / "packed", tmp_path / "back", capsys)[0] == 0
    assert files_of(tmp_path / "back") == files_of(tmp_path / "now")


def test_shards_of_earlier_releases_are_checked_and_their_jobs_go_on(packed: Path, tmp_path: Path) -> None:
    of_an_earlier_release(packed)
    whole = (packed / SHARD).read_bytes()
    flip(packed / SHARD, 0.999)
    assert [p.split(":")[0] for p in problems(packed)] == [SHARD]
    (packed / SHARD).write_bytes(whole)
    result = pack_cache(tmp_path / "cache", packed)
    assert result.files_before == 3 and result.bytes_now == 0
    flip(packed / CARRIED, 0.5)
    assert [p.split(":")[0] for p in problems(packed)] == [CARRIED]


@pytest.mark.parametrize("name", ["files.jsonl", "dataset.json"])
def test_descriptions_that_do_not_fit_one_another(packed: Path, name: str, tmp_path: Path, capsys) -> None:
    """An earlier release's files.jsonl that lost a line, its dataset.json with another shard."""
    of_an_earlier_release(packed)
    path = packed / name
    if name == "files.jsonl":
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    else:
        path.write_text(path.read_text().replace("shard-00000", "shard-00001"))
    assert "than files.jsonl" in problems(packed)[0]
    code, said = unpacked(packed, tmp_path / "back", capsys)
    assert code == 4 and "than files.jsonl" in said


# --- latents that are a view of a larger tensor -----------------------------------------------------------------------


def views(root: Path) -> list[Path]:
    """SimpleTuner files whose storage is larger than the latents, which torch.save writes whole."""
    made = []
    root.mkdir()
    for n in range(3):
        whole = torch.randn(16, 12, 10, 14).bfloat16()
        whole[:, 3:8, 1:9, :12] = genuine.latents(n, 16)
        made.append(root / f"{n}.pt")
        torch.save(whole[:, 3:8, 1:9, :12], made[-1])
    return made


def test_views_come_back_with_what_is_between_their_numbers(tmp_path: Path) -> None:
    files = views(tmp_path / "cache")
    pack_cache(tmp_path / "cache", tmp_path / "packed")
    assert verify_cache(tmp_path / "packed", against=tmp_path / "cache").problems == ()
    assert main(["cache", "unpack", str(tmp_path / "packed"), str(tmp_path / "back"), "-q"]) == 0
    for path in files:
        one, other = (torch.load(place, weights_only=True) for place in (path, tmp_path / "back" / path.name))
        assert one.stride() == other.stride() and one.storage_offset() == other.storage_offset()
        whole, back = (torch.tensor([]).bfloat16().set_(t.untyped_storage()) for t in (one, other))
        changed = whole != back
        changed = torch.as_strided(changed, (16, 12, 10, 14), (1680, 140, 14, 1))
        changed[:, 3:8, 1:9, :12] = False
        assert not changed.any()
        assert 0 < (one.float() - other.float()).norm() < 0.2 * one.float().norm()
    words = ["--tau", "0", "--precision", "fp32", "-q"]
    assert main(["cache", "pack", str(tmp_path / "cache"), str(tmp_path / "exact"), *words]) == 0
    assert main(["cache", "unpack", str(tmp_path / "exact"), str(tmp_path / "same"), "-q"]) == 0
    assert files_of(tmp_path / "cache") == files_of(tmp_path / "same")


def test_views_that_an_earlier_release_packed(tmp_path: Path, monkeypatch, capsys) -> None:
    """It left out what is between the numbers: the latents come back, and verify says what does not."""
    files = views(tmp_path / "cache")
    with monkeypatch.context() as earlier:
        earlier.setattr("inlay.caches.holes.with_gaps", lambda hole: hole)
        pack_cache(tmp_path / "cache", tmp_path / "packed")
    of_an_earlier_release(tmp_path / "packed")
    found = verify_cache(tmp_path / "packed").problems
    assert len(found) == 3 and all("pack the cache again" in problem for problem in found)
    assert unpacked(tmp_path / "packed", tmp_path / "back", capsys)[0] == 0
    one, other = (torch.load(place, weights_only=True).float() for place in (files[0], tmp_path / "back" / "0.pt"))
    assert (one - other).norm() < 0.2 * one.norm()


@pytest.mark.parametrize(
    ("shape", "stride", "start", "extra"),
    [
        ((3, 4), (4, 1), 0, 0),
        ((4, 3), (1, 4), 0, 0),  # transposed
        ((3, 4), (10, 2), 5, 7),  # every other number of some rows
        ((1, 3), (99, 2), 1, 1),  # a side of 1 may have any stride
    ],
)
def test_cut_and_fill_are_inverse(shape, stride, start, extra) -> None:
    numbers = start + sum((side - 1) * step for side, step in zip(shape, stride, strict=True) if side > 1) + 1 + extra
    data = torch.randn(numbers).half().view(torch.uint8).numpy().tobytes()
    hole = Hole(offset=9, length=len(data) + 1, dtype="F16", shape=shape, stride=stride, start=start)
    hole = Hole(**vars(hole) | {"between": hole.gaps})
    whole = b"beginning" + data + b"?" + b"end"  # a byte of no number
    around = hole.cut(whole)
    assert len(around) == len(whole) - 2 * torch.Size(shape).numel()
    z = hole.read(whole)
    assert hole.fill(around, z) == whole
    assert hole.read(hole.fill(around, z + 1)).equal(z + 1)
    assert hole.cut(hole.fill(around, z + 1)) == around
    assert Hole.parse(json.loads(json.dumps(hole.record()))) == hole


def test_numbers_that_stand_for_several_are_not_packed(tmp_path: Path) -> None:
    """An expanded tensor has one number for many: it could not come back with other ones."""
    files = genuine.simpletuner(tmp_path / "cache")
    torch.save(genuine.latents(0, 16)[:, :1].bfloat16().expand(-1, 5, -1, -1), files[0])
    before = files[0].read_bytes()
    result = pack_cache(tmp_path / "cache", tmp_path / "packed")
    assert result.dataset.quarantined == 1
    shutil.rmtree(tmp_path / "cache" / "walks")
    assert main(["cache", "unpack", str(tmp_path / "packed"), str(tmp_path / "back"), "-q"]) == 0
    assert (tmp_path / "back" / "walks" / files[0].name).read_bytes() == before
