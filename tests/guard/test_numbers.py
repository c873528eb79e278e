# SPDX-License-Identifier: Apache-2.0
"""Numbers in README and docs are those of the records they name; records of quality are of the weights that ship."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inlay.cli.main import main
from inlay.weightfile import load_weights
from tests.guard.tree import ROOT

MARK = re.compile(r"<!--n ([\w.-]+)-->(.*?)<!--/n-->", re.S)  # as benchmarks/fill_numbers.py sets them
MEASURED = re.compile(r"\b\d[\d,.]*\s?(?:dB|ms|MB|s\b|bits a pixel|bytes|times|videos|M\b|± ?[\d.]+ %)")


def page(name: str) -> str:
    """A page as people see it: without the marks."""
    return MARK.sub(lambda found: found[2], (ROOT / name).read_text(encoding="utf-8"))


README = page("README.md")
WEIGHTS = ROOT / "src" / "inlay" / "weights"
SHIPPED = json.loads((WEIGHTS / "mini.profile.json").read_text())["weight_hash"]


def record(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))


def linked(pattern: str) -> Any:
    """The record that the README names."""
    found = re.search(rf"benchmarks/({pattern})", README)
    assert found, f"README names no record like {pattern}"
    return record(found[1])


@pytest.mark.parametrize(
    "line", re.findall(r"^\| (?:DAVIS|bench), \d+ % kept \|.*$", README, re.M), ids=lambda line: line[2:20]
)
def test_table_of_fills(line: str) -> None:
    cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
    name, rate = re.findall(r"(\w+), (\d+) %", cells[0])[0]
    rows = linked(r"fills_\w+_[\d-]+\.json")["rows"]
    psnr = {r["fill"]: r["psnr"] for r in rows if r["set"] == name.lower() and r["keep_rate"] in (1.0, int(rate) / 100)}
    assert cells[1:] == [f"{psnr[fill]:.2f}" for fill in ("full rate", "lit", "hold", "linear")]


def test_the_paper_s_network() -> None:
    rows = linked(r"fills_\w+_[\d-]+\.json")["rows"]
    psnr = {(r["set"], r["keep_rate"]): r["psnr"] for r in rows if r["fill"] == "lit-paper"}
    davis = " / ".join(f"{psnr['davis', rate]:.2f}" for rate in (0.78, 0.62, 0.35))
    assert f"{davis} dB on DAVIS\nand {psnr['bench', 0.32]:.2f} dB on bench" in README


def test_demo() -> None:
    demo = linked(r"demo_\w+\.json")
    said = f"{100 * demo['keep_rate']:.1f} % of the cells kept, {demo['bytes']:,} bytes in all"
    assert said in README and f"({demo['bits_per_pixel']:.3f} bits a pixel" in README
    assert f"PSNR {demo['psnr']:.1f} dB" in README and demo["weight_hash"] == SHIPPED


def test_reading_kept_cells_alone() -> None:
    found = linked(r"sparse_classifier_object_[\w-]+\.json")
    rows = {row["reading"]: row for row in found["rows"]}
    for reading in ("sparse", "dense"):
        said = f"{100 * rows[reading]['accuracy']:.1f} ± {100 * rows[reading]['accuracy_sd']:.1f} %"
        assert said in README, f"{reading}: the record says {said}"
    assert f"at {rows['sparse']['tokens_per_clip'] / rows['dense']['tokens_per_clip']:.0%}".replace("%", " %") in README


@pytest.mark.parametrize("task", ["object", "motion", "subject"])
def test_page_on_reading_kept_cells(task: str) -> None:
    table = page("docs/pack.md").split(f"sparse_classifier_{task}_cpu")[1].split("| reading")[1].split("\n\n")[0]
    rows = record(next((ROOT / "benchmarks").glob(f"sparse_classifier_{task}_cpu_*.json")).name)["rows"]
    lines = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    for cells, row in zip(lines, rows, strict=True):
        wanted = [f"{100 * row['accuracy']:.1f} ± {100 * row['accuracy_sd']:.1f} %"]
        wanted += [f"{row['tokens_per_clip']:.0f}", f"{row['clips_per_second']:.0f}"]
        assert cells[1:] == wanted, row["reading"]


def test_ratio_to_cosmos_on_a_cpu() -> None:
    found = linked(r"cpu_ratio_[\d-]+\.json")
    said = f"takes {found['mini']['whole_s']:.1f} s for a clip of 33x256x256, {found['ratio']:.1f} times faster"
    assert said in README


def test_cosmos_on_a_gpu() -> None:
    rows = linked(r"speed_\w+_h200_[\d-]+\.json")["stages"]["pipeline"]
    fast, eager = (rows[f"cosmos batch 1 {form}"]["clip_ms"] for form in ("compiled", "eager"))
    alone, slow = fast["encode and decode alone"], eager["whole"]
    said = f"takes {fast['whole']:.1f} ms, mask and LIT included ({alone:.1f} without them), against {slow:.0f} ms"
    assert said in README


def test_rate_of_tokenize() -> None:
    rows = linked(r"tokenize_rate_cpu_[\d-]+\.json")["rows"]
    local, ray = (next(r for r in rows if r.get("engine") == name) for name in ("local", "ray"))
    bare = next(r for r in rows if r.get("bare") == "encode")["videos_per_second"]
    text = " ".join(README.split())
    assert f"does {local['videos_per_second']:.1f} videos of 33x128x128 a second" in text
    said = f"on Ray {ray['videos_per_second']:.1f} with its start counted and {ray['steady']:.1f} after it"
    assert f"{said}, where a bare encode loop does {bare:.1f}" in text


def fill_numbers(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "benchmarks" / "fill_numbers.py"), *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_marked_number_is_that_of_its_record() -> None:
    done = fill_numbers(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_a_new_record_changes_the_pages_and_nothing_else_does(tmp_path: Path) -> None:
    for name in ("README.md", "docs/index.md", "docs/pack.md", "src/inlay/weights/MODEL_CARD.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for place in [*WEIGHTS.glob("*.safetensors"), *WEIGHTS.glob("*.json")]:
        (tmp_path / "src/inlay/weights" / place.name).symlink_to(place)
    (tmp_path / "benchmarks").mkdir()
    for place in [*(ROOT / "benchmarks").glob("*.json"), *(ROOT / "benchmarks").glob("*.py")]:
        shutil.copy(place, tmp_path / "benchmarks" / place.name)
    newer = record("fills_grid_h200_2026-11-16.json")
    newer["rows"] = [row | {"psnr": row["psnr"] + 1} for row in newer["rows"]]
    (tmp_path / "benchmarks" / "fills_grid_cpu_2099-01-01.json").write_text(json.dumps(newer))
    done = fill_numbers(tmp_path, "--check")
    assert done.returncode == 1 and "fills.full.davis: says '30.80 dB', the record '31.80 dB'" in done.stderr
    assert fill_numbers(tmp_path).returncode == 0 and fill_numbers(tmp_path, "--check").returncode == 0
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| 31.80 | **31.29** |" in readme and "](benchmarks/fills_grid_cpu_2099-01-01.json)" in readme
    assert MARK.sub("", readme) == MARK.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_no_measured_number_is_typed_by_hand(name: str) -> None:
    text = MARK.sub("", (ROOT / name).read_text(encoding="utf-8"))
    typed = MEASURED.findall(re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    assert not typed, f"{name}: {typed} stand outside marks; see benchmarks/fill_numbers.py --list"


def test_page_of_speed() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "speed_tables.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_page_of_results(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    assert main(["study", "docs", "--out", str(ROOT / "benchmarks" / "studies"), "--page", str(page)]) == 0
    told = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    made, shown = ([x for x in t.splitlines() if x[:2] in ("| ", "- ")] for t in (page.read_text("utf-8"), told))
    assert made == shown and len(shown) > 100, "figures aside, the page is what the kept records say"
    assert set(re.findall(r"weights ([0-9a-f]{16})", told)) == {SHIPPED}


def test_records_are_of_the_weights_that_ship() -> None:
    files = {"mini": "mini", "lit": "mini.lit", "lit-paper": "mini.lit-paper"}
    hashes = {name: load_weights(WEIGHTS / f"{file}.safetensors").hash for name, file in files.items()}
    assert linked(r"fills_\w+_[\d-]+\.json")["weights"] == hashes and hashes["mini"] == SHIPPED
    assert record("noise_floor_cpu.json")["weight_hash"] == SHIPPED
    for path in (ROOT / "benchmarks").glob("container_cpu_*.json"):
        assert json.loads(path.read_text())["weights"] == SHIPPED
