# SPDX-License-Identifier: Apache-2.0
"""A cache to tokens and back through the command line, in every format; interruptions and bad files."""

from __future__ import annotations

import csv
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from inlay.caches import PackedCache, pack_cache, verify_cache
from inlay.caches.table import FORMATS, find_format
from inlay.cli.main import main
from inlay.errors import OutputError
from inlay.scale import TokenDataset
from tests.caches import genuine

FORMAT_NAMES = list(genuine.BUILDERS)


@pytest.fixture(params=FORMAT_NAMES)
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, list[Path]]:
    root = tmp_path / "cache"
    return request.param, root, genuine.BUILDERS[request.param](root)


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> dict:
    assert main(["cache", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def contents(root: Path, *, without: str = "map_style_cache") -> dict[str, bytes]:
    found = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if without not in name}


def test_there_and_back(cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Same names, same sizes, everything but the latents byte for byte, and the latents near."""
    name, root, files = cache
    made = run("pack", str(root), str(tmp_path / "packed"), "--verify", capsys=capsys)
    assert (made["format"], made["files"], made["clips"]) == (name, len(files), 3)
    assert 0.2 < made["keep_rate"] < 0.7
    assert made["latent_ratio"] > 3
    assert made["verified"]["ok"] and made["verified"]["clips_compared"] == 3
    assert 0.001 < made["verified"]["relative_error"] < 0.12
    run("unpack", str(tmp_path / "packed"), str(tmp_path / "back"), capsys=capsys)
    before, after = contents(root), contents(tmp_path / "back")
    assert before.keys() == after.keys()
    form = FORMATS[name]
    for path in files:
        one, other = form.open(path), form.open(tmp_path / "back" / path.relative_to(root))
        assert one.facts == other.facts
        assert one.same_rest(other.rest())
        for row in range(len(one.facts)):
            z, back = one.latents(row), other.latents(row)
            assert z.dtype == back.dtype
            assert 0 < float((z.float() - back.float()).norm() / z.float().norm()) < 0.2
        if path.suffix in (".pt", ".pth"):
            assert zipfile.ZipFile(tmp_path / "back" / path.relative_to(root)).testzip() is None
    latents = {p.relative_to(root).as_posix() for p in files}
    assert all(before[p] == after[p] for p in before if p not in latents)


def test_nothing_dropped_and_nothing_rounded_is_the_same_bytes(cache, tmp_path: Path) -> None:
    """tau 0 keeps every cell; fp32 holds every bit: what comes back is the cache."""
    name, root, files = cache
    assert main(["cache", "pack", str(root), str(tmp_path / "p"), "--tau", "0", "--precision", "fp32", "-q"]) == 0
    assert main(["cache", "unpack", str(tmp_path / "p"), str(tmp_path / "back"), "-q"]) == 0
    for path in files:
        back = tmp_path / "back" / path.relative_to(root)
        if name == "fastvideo":
            import pyarrow.parquet as pq

            assert pq.read_table(back).equals(pq.read_table(path))
            assert pq.read_schema(back) == pq.read_schema(path)
        else:
            assert back.read_bytes() == path.read_bytes()


def test_the_packed_cache_is_a_tokenised_data_set(cache, tmp_path: Path) -> None:
    name, root, _ = cache
    pack_cache(str(root), str(tmp_path / "packed"))
    data = TokenDataset(str(tmp_path / "packed"))
    assert len(data) == 3
    sample = data[0]
    packed = PackedCache(tmp_path / "packed")
    assert sample.tokens.mask.shape == (5, 8, 12)
    assert torch.equal(sample.tokens.values, packed.tokens(packed.paths[0]).values)
    assert data.dataset is not None and len(data.dataset.latent_std) == (128 if name == "ltx" else 16)
    dense = TokenDataset(str(tmp_path / "packed"), mode="dense")[0]["latents"]
    assert torch.equal(dense, packed.latents(packed.paths[0]))


def test_formats_are_told_apart(cache) -> None:
    name, root, files = cache
    form, found = find_format(root)
    assert (form.name, found) == (name, files)


def test_image_to_video_parts_are_carried(tmp_path: Path) -> None:
    files = genuine.musubi_wan(tmp_path / "cache", 2, image=True)
    pack_cache(str(tmp_path / "cache"), str(tmp_path / "packed"))
    from safetensors.torch import load, load_file

    packed = PackedCache(tmp_path / "packed")
    before, after = load_file(files[0]), load(packed.open(files[0].name).read())
    assert before.keys() == after.keys()
    for key in ("clip_bfloat16", "latents_image_5x8x12_bfloat16"):
        assert torch.equal(before[key], after[key])


def test_budgets_and_precisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    genuine.ltx(tmp_path / "cache")

    def pack(out: str, *words: str) -> dict:
        return run("pack", str(tmp_path / "cache"), str(tmp_path / out), *words, capsys=capsys)

    kept = pack("a", "--keep", "0.3", "--exact")
    assert kept["keep_rate"] == pytest.approx(0.3, abs=0.002) and kept["tau"] is None
    raw, small = pack("b", "--precision", "bf16", "--tau", "0.3"), pack("c", "--precision", "q8", "--tau", "0.3")
    assert raw["keep_rate"] == small["keep_rate"] and raw["tau"] == 0.3
    assert small["token_bytes"] < 0.7 * raw["token_bytes"]
    assert raw["relative_error"] < small["relative_error"]
    hold, linear = pack("d", "--keep", "0.25"), pack("e", "--keep", "0.25", "--fill", "linear")
    assert hold["keep_rate"] == linear["keep_rate"] <= 0.25
    assert linear["relative_error"] != hold["relative_error"] > 0.1


def test_the_loss_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calibration finds the tau at which the latents come back so near; more loss, fewer cells."""
    genuine.musubi_wan(tmp_path / "cache", 6)
    found = {}
    for loss in ("0.02", "0.1", "0.4"):
        words = [
            "pack",
            str(tmp_path / "cache"),
            str(tmp_path / loss),
            "--loss",
            loss,
            "--precision",
            "fp32",
            "--verify",
        ]
        found[loss] = run(*words, capsys=capsys)
        assert found[loss]["verified"]["relative_error"] <= 1.1 * float(loss)
    assert found["0.4"]["verified"]["relative_error"] > 0.2
    assert found["0.02"]["keep_rate"] > found["0.1"]["keep_rate"] > found["0.4"]["keep_rate"]
    usual = run("pack", str(tmp_path / "cache"), str(tmp_path / "usual"), capsys=capsys)
    assert usual["tau"] == found["0.1"]["tau"]


def test_workers_make_the_same_bytes(tmp_path: Path) -> None:
    cut(genuine.musubi_wan(tmp_path / "cache", 5)[2])
    words = ["cache", "pack", str(tmp_path / "cache")]
    assert main([*words, str(tmp_path / "one"), "--shard-files", "1", "-q"]) == 0
    assert main([*words, str(tmp_path / "two"), "--shard-files", "1", "--workers", "2", "-q"]) == 0
    one, two = (contents(tmp_path / name, without="report") for name in ("one", "two"))
    assert one == two
    assert one["checksums.jsonl"].count(b'"files/') == 6, "of five texts and a file that was cut short"


def test_zeros_of_padded_text_cost_nothing(tmp_path: Path) -> None:
    files = genuine.diffsynth(tmp_path / "cache")
    result = pack_cache(str(tmp_path / "cache"), str(tmp_path / "packed"))
    assert result.packed_bytes < 0.6 * sum(p.stat().st_size for p in files)


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_a_killed_job_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    genuine.musubi_wan(tmp_path / "cache", 40)
    words = ["cache", "pack", str(tmp_path / "cache")]
    assert main([*words, str(tmp_path / "whole"), "--shard-files", "2", "-q"]) == 0
    out = tmp_path / "killed"
    job = subprocess.Popen([sys.executable, "-m", "inlay", *words, str(out), "--shard-files", "2", "-q"])
    while len(list(out.glob("job/shard-*.json"))) < 2 and job.poll() is None:
        time.sleep(0.002)
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert not (out / "dataset.json").exists(), "the job was not interrupted"
    whole = [p for p in out.glob("shards/*.tar") if (out / "job" / f"{p.stem}.json").exists()]
    there = {p: p.stat().st_mtime_ns for p in whole}
    assert len(there) >= 2
    assert main([*words, str(out), "--shard-files", "2", "-q"]) == 0
    assert there == {p: p.stat().st_mtime_ns for p in whole}, "what was done is not done again"
    assert contents(out, without="report") == contents(tmp_path / "whole", without="report")


def test_a_job_killed_while_it_carries_files_along_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """Nothing half-copied stays, and what was copied before the kill is listed with its checksum too."""
    genuine.musubi_wan(tmp_path / "cache")
    for n in range(8):
        with (tmp_path / "cache" / f"video_{n}.mp4").open("wb") as file:
            file.truncate((16 << 20) + n)
    words = ["cache", "pack", str(tmp_path / "cache")]
    assert main([*words, str(tmp_path / "whole"), "-q"]) == 0
    out = tmp_path / "killed"
    job = subprocess.Popen([sys.executable, "-m", "inlay", *words, str(out), "-q"])
    while len(list(out.glob("files/*.mp4"))) < 2 and job.poll() is None:
        time.sleep(0.002)
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert not (out / "checksums.jsonl").exists(), "the job was not interrupted"
    (out / "files" / ".video_7.mp4.0123456789ab.part").write_bytes(b"half")  # as one that was killed leaves
    assert main([*words, str(out), "-q"]) == 0
    assert contents(out, without="report") == contents(tmp_path / "whole", without="report")
    assert verify_cache(out, against=tmp_path / "cache").problems == ()


def test_a_full_disk_is_no_fault_of_the_cache(tmp_path: Path, monkeypatch, capsys) -> None:
    """The job stops with one line, refuses no file, and goes on when there is room."""
    genuine.simpletuner(tmp_path / "cache")
    words = ["cache", "pack", str(tmp_path / "cache"), str(tmp_path / "packed"), "-q"]

    def full(*given) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("inlay.caches.shards.add_member", full)
        assert main(words) == OutputError.exit_code
    assert "No space left on device" in capsys.readouterr().err
    assert not list((tmp_path / "packed").glob("shards/*"))
    assert main(words) == 0
    assert quarantine(tmp_path / "packed") == {}


def test_finished_jobs_do_nothing_and_other_settings_are_refused(tmp_path: Path, capsys) -> None:
    genuine.simpletuner(tmp_path / "cache")
    words = ["cache", "pack", str(tmp_path / "cache"), str(tmp_path / "packed")]
    assert main([*words, "-q"]) == 0
    when = {p: p.stat().st_mtime_ns for p in (tmp_path / "packed").glob("shards/*")}
    assert main([*words, "-q"]) == 0
    assert when == {p: p.stat().st_mtime_ns for p in (tmp_path / "packed").glob("shards/*")}
    assert main([*words, "--tau", "0.5", "-q"]) == 2
    assert "tau was None and is 0.5" in capsys.readouterr().err
    genuine.simpletuner(tmp_path / "cache", 4)
    assert main([*words, "-q"]) == 2
    assert "the cache has changed" in capsys.readouterr().err


def test_unpacking_goes_on_and_overwrites_nothing(tmp_path: Path, capsys) -> None:
    files = genuine.ltx(tmp_path / "cache")
    pack_cache(str(tmp_path / "cache"), str(tmp_path / "packed"))
    words = ["cache", "unpack", str(tmp_path / "packed"), str(tmp_path / "back")]
    assert main([*words, "-q"]) == 0
    first = tmp_path / "back" / files[0].relative_to(tmp_path / "cache")
    whole = contents(tmp_path / "back")
    first.unlink()
    assert main([*words, "-q"]) == 0
    assert contents(tmp_path / "back") == whole
    first.write_bytes(b"mine")
    assert main([*words, "-q"]) == 2
    assert "is another file" in capsys.readouterr().err
    assert first.read_bytes() == b"mine"


# --- bad input: one sentence each, nothing lost -----------------------------------------------------------------------


def quarantine(out: Path) -> dict[str, str]:
    with (out / "quarantine.csv").open() as file:
        return {row["path"]: row["reason"] for row in csv.DictReader(file)}


def cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-100])
    return "cut short"


def emptied(path: Path) -> str:
    path.write_bytes(b"")
    return "is empty" if path.suffix != ".parquet" else "cut short"


def other_kind(path: Path) -> str:
    path.write_bytes(b"hello" * 40)
    return "cut short"


def mixed_dtype(path: Path) -> str:
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({"latents_5x8x12_float32": genuine.latents(0, 16)}, path)
        return "holds F32, and the others"
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        place = table.schema.get_field_index("vae_latent_dtype")
        pq.write_table(table.set_column(place, "vae_latent_dtype", pa.array(["float16"] * len(table))), path)
        return "says 'float16', and FastVideo reads every row as float32"
    found = torch.load(path, weights_only=True)
    if isinstance(found, torch.Tensor):
        torch.save(found.float(), path)
    elif isinstance(found, tuple):
        torch.save(({"input_latents": found[0]["input_latents"].float()}, *found[1:]), path)
    else:
        torch.save(found | {"latents": found["latents"].float()}, path)
    return "holds F32, and the others BF16"


@pytest.mark.parametrize("spoil", [cut, emptied, other_kind, mixed_dtype])
def test_a_bad_file_is_named_and_carried_along(cache, tmp_path: Path, spoil, capsys) -> None:
    _, root, files = cache
    reason = spoil(files[-1])
    spoilt, path = files[-1].read_bytes(), files[-1].relative_to(root).as_posix()
    made = run("pack", str(root), str(tmp_path / "packed"), "--verify", capsys=capsys)
    assert made["quarantined"] == 1 and made["files"] == len(files) - 1
    found = quarantine(tmp_path / "packed")
    assert list(found) == [path]
    assert reason in found[path]
    run("unpack", str(tmp_path / "packed"), str(tmp_path / "back"), capsys=capsys)
    assert (tmp_path / "back" / path).read_bytes() == spoilt


def test_latents_of_another_model(tmp_path: Path, capsys) -> None:
    files = genuine.simpletuner(tmp_path / "cache", 5)
    torch.save(genuine.latents(0, 48).bfloat16(), files[0])
    torch.save(genuine.latents(0, 7).bfloat16(), files[1])
    run("pack", str(tmp_path / "cache"), str(tmp_path / "packed"), capsys=capsys)
    found = quarantine(tmp_path / "packed")
    assert "latents of 7 channels" in found[files[1].relative_to(tmp_path / "cache").as_posix()]
    assert "and the others are of" in found[files[0].relative_to(tmp_path / "cache").as_posix()]


def test_a_cache_of_no_known_model_says_what_was_found(tmp_path: Path, capsys) -> None:
    for path in genuine.simpletuner(tmp_path / "cache", 2):
        torch.save(genuine.latents(0, 7).bfloat16(), path)
    assert main(["cache", "pack", str(tmp_path / "cache"), str(tmp_path / "packed")]) == 4
    assert "has latents of 7 channels, and simpletuner caches have others (wan-2.1 16," in capsys.readouterr().err


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(("number", "reason"), [(torch.nan, "NaN"), (torch.inf, "infinite"), (1e30, None)])
def test_bad_numbers_do_not_spoil_the_others(tmp_path: Path, place: int, number: float, reason, capsys) -> None:
    """Calibration passes over such a clip, wherever it lies, so that the others are packed as without it."""
    files = genuine.simpletuner(tmp_path / "cache", 3)
    alone = tmp_path / "alone"
    shutil.copytree(tmp_path / "cache", alone)
    (alone / files[place].relative_to(tmp_path / "cache")).unlink()
    torch.save(torch.full((16, 5, 8, 12), number).bfloat16(), files[place])
    made = run("pack", str(tmp_path / "cache"), str(tmp_path / "packed"), capsys=capsys)
    assert made["tau"] == run("pack", str(alone), str(tmp_path / "wanted"), capsys=capsys)["tau"]
    found = quarantine(tmp_path / "packed").get(files[place].relative_to(tmp_path / "cache").as_posix())
    assert found is None if reason is None else reason in str(found)


def test_a_cache_of_bad_numbers_alone_is_refused(tmp_path: Path, capsys) -> None:
    for path in genuine.simpletuner(tmp_path / "cache", 3):
        torch.save(torch.full((16, 5, 8, 12), torch.nan).bfloat16(), path)
    assert main(["cache", "pack", str(tmp_path / "cache"), str(tmp_path / "packed")]) == 4
    assert "finite numbers; make the cache again" in capsys.readouterr().err


def test_tables_that_are_not_compressed(tmp_path: Path, capsys) -> None:
    import pyarrow.parquet as pq

    for path in (files := genuine.fastvideo(tmp_path / "cache")):
        pq.write_table(pq.read_table(path), path, compression="none")
    made = run("pack", str(tmp_path / "cache"), str(tmp_path / "packed"), "--verify", capsys=capsys)
    assert made["quarantined"] == 0 and made["verified"]["ok"]
    run("unpack", str(tmp_path / "packed"), str(tmp_path / "back"), capsys=capsys)
    back = pq.ParquetFile(tmp_path / "back" / files[0].relative_to(tmp_path / "cache")).metadata.row_group(0).column(0)
    assert back.compression == "UNCOMPRESSED"


@pytest.mark.parametrize("seed", range(6))
def test_flipped_bytes_end_in_a_sentence(cache, tmp_path: Path, seed: int, capsys) -> None:
    """Whatever is damaged, the other files are packed; exit codes are those of errors that are understood."""
    _, root, files = cache
    rng = random.Random(seed)
    data = bytearray(files[0].read_bytes())
    head_or_tail = range(min(600, len(data))) if seed % 2 else range(max(0, len(data) - 600), len(data))
    for place in rng.choices(head_or_tail, k=5):
        data[place] ^= rng.randrange(1, 256)
    files[0].write_bytes(data)
    code = main(["cache", "pack", str(root), str(tmp_path / "packed"), "--verify"])
    said = capsys.readouterr().err
    assert "unexpected" not in said and code == (4 if len(files) == 1 and said else 0), said


def test_pickles_are_not_run(tmp_path: Path) -> None:
    """A torch file that would run code when loaded is packed, carried along and comes back without running it."""
    mark = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    root = tmp_path / "cache"
    (root / "0").mkdir(parents=True)
    for n in range(2):
        shared = {"input_latents": genuine.latents(n, 16)[None].bfloat16(), "bomb": Bomb()}
        torch.save((shared, {"context": torch.zeros(1, 512, 4)}, {}), root / "0" / f"{n}.pth")
    assert main(["cache", "pack", str(root), str(tmp_path / "p"), "--verify", "-q"]) == 0
    assert main(["cache", "unpack", str(tmp_path / "p"), str(tmp_path / "back"), "-q"]) == 0
    assert not mark.exists()
    assert b"touch" in (tmp_path / "back" / "0" / "0.pth").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["pack", "nowhere", "out"], 2, "no such folder"),
        (["pack", "empty", "out"], 2, "holds no latents of"),
        (["pack", "cache", "cache/out"], 2, "lie in one another"),
        (["pack", "cache", "empty2"], 2, "holds no packed cache"),
        (["pack", "cache", "file"], 6, "file: is a file; give the name of a folder"),
        (["pack", "cache", "out", "--format", "wan"], 2, "unknown cache format"),
        (["pack", "cache", "out", "--format", "ltx"], 2, "holds no latents of LTX-2"),
        (["pack", "cache", "out", "--criterion", "pixel-l1"], 2, "no pixels"),
        (["pack", "cache", "out", "--tau", "1", "--keep", "0.3"], 2, "contradict"),
        (["pack", "cache", "out", "--fill", "lit"], 2, "unknown fill"),
        (["pack", "cache", "out", "--loss", "2"], 2, "between 0 and 1"),
        (["pack", "cache", "out", "--loss", "0.1", "--keep", "0.3"], 2, "give it alone"),
        (["pack", "cache", "out", "--backbone", "mini-untrained"], 2, "ask for that as well (--verify)"),
        (["pack", "cache", "out", "--verify", "--backbone", "nope"], 2, "unknown backbone 'nope'"),
        (["unpack", "cache", "out"], 2, "has no cache.json"),
        (["verify", "cache", "--weights", "file"], 2, "name it as well (--backbone)"),
        (["verify", "cache"], 2, "has no cache.json"),
        (["make", "empty", "out", "--format", "diffsynth"], 2, "keeps the text in the same file"),
    ],
)
def test_requests_that_make_no_sense(words, code, said, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    genuine.simpletuner(Path("cache"), 1)
    Path("empty").mkdir()
    Path("empty2").mkdir()
    Path("empty2/mine.txt").write_text("mine")
    Path("file").write_text("mine")
    assert main(["cache", *words]) == code
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not Path("out").exists()


def test_two_caches_in_one_folder_need_a_name(tmp_path: Path, capsys) -> None:
    genuine.musubi_wan(tmp_path / "cache")
    genuine.musubi_hv(tmp_path / "cache")
    words = ["cache", "pack", str(tmp_path / "cache"), str(tmp_path / "packed"), "-q"]
    assert main(words) == 2
    assert "caches of musubi-wan and musubi-hv" in capsys.readouterr().err
    assert main([*words, "--format", "musubi-hv"]) == 0
    carried = PackedCache(tmp_path / "packed").other_paths()
    assert "clip_0_00000-017_0096x0064_wan.safetensors" in list(carried)


def test_clips_that_the_trainer_would_pass_over_are_noted(tmp_path: Path, capsys) -> None:
    genuine.musubi_wan(tmp_path / "cache")
    (tmp_path / "cache" / "clip_1_wan_te.safetensors").unlink()
    made = run("pack", str(tmp_path / "cache"), str(tmp_path / "packed"), capsys=capsys)
    assert made["notes"] == [
        "1 clips have no wan_te file (clip_1_00000-017_0096x0064_wan.safetensors): the trainer passes over them"
    ]


def test_damage_of_a_packed_cache_is_found(tmp_path: Path, capsys) -> None:
    genuine.diffsynth(tmp_path / "cache")
    result = pack_cache(str(tmp_path / "cache"), str(tmp_path / "packed"))
    packed = PackedCache(tmp_path / "packed")
    file = packed.files[packed.paths[1]]
    shard = tmp_path / "packed" / file.shard
    whole = shard.read_bytes()
    for at, said in ((file.rest_offset + file.rest_bytes // 2, "checksum"), (file.clips[0][0] + 600, "checksum")):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert main(["cache", "verify", str(tmp_path / "packed"), "--json"]) == 4
        found = json.loads(capsys.readouterr().out)
        assert len(found["problems"]) == 1 and said in found["problems"][0]
    shard.write_bytes(whole[: file.rest_offset])
    assert main(["cache", "verify", str(tmp_path / "packed"), "--json"]) == 4
    assert "cut short" in json.loads(capsys.readouterr().out)["problems"][0]
    shutil.rmtree(tmp_path / "packed" / "shards")
    assert main(["cache", "verify", str(tmp_path / "packed"), "--json"]) == 4
    assert len(json.loads(capsys.readouterr().out)["problems"]) == result.files


def test_a_changed_cache_is_not_taken_for_the_packed_one(tmp_path: Path, capsys) -> None:
    files = genuine.ltx(tmp_path / "cache")
    pack_cache(str(tmp_path / "cache"), str(tmp_path / "packed"))
    genuine.ltx(tmp_path / "cache")
    words = ["cache", "verify", str(tmp_path / "packed"), "--against", str(tmp_path / "cache"), "--json"]
    assert main(words) == 0
    capsys.readouterr()
    torch.save({"latents": genuine.latents(9, 128).bfloat16()}, files[0])
    assert main(words) == 4
    assert "has changed in the cache" in json.loads(capsys.readouterr().out)["problems"][0]
