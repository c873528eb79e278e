# SPDX-License-Identifier: Apache-2.0
"""Numbers in README and docs are those of the records they name; records of quality are of the weights that ship."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inlay.cli.main import main
from inlay.research.studies.paper import MAIN
from inlay.weightfile import load_weights
from tests.guard.tree import ROOT

PAGES = (
    "README.md", "docs/index.md", "docs/quick-start.md", "docs/idea.md", "docs/backbones.md", "docs/fill.md",
    "docs/pack.md", "docs/bits.md", "docs/masking.md", "docs/caches.md", "docs/robots.md",
    "src/inlay/weights/MODEL_CARD.md",
)  # fmt: skip
MARK = re.compile(r"<!--n ([\w.-]+)-->(.*?)<!--/n-->", re.S)  # as benchmarks/fill_numbers.py sets them
MEASURED = re.compile(r"\b\d[\d,.]*\s?(?:dB|ms|MB|s\b|bits a pixel|bytes|times|videos|M\b|± ?[\d.]+ %)")


def page(name: str) -> str:
    """A page as people see it: without the marks."""
    return MARK.sub(lambda found: found[2], (ROOT / name).read_text(encoding="utf-8"))


README, FILL, START = page("README.md"), page("docs/fill.md"), page("docs/quick-start.md")
WEIGHTS = ROOT / "src" / "inlay" / "weights"
SHIPPED = json.loads((WEIGHTS / "mini.profile.json").read_text())["weight_hash"]


COSMOS = "Cosmos-CV4x8x8, full rate"


def record(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))


def linked(pattern: str, text: str = README) -> Any:
    """The record that a page names."""
    found = re.search(rf"benchmarks/({pattern})", text)
    assert found, f"no record like {pattern} is named"
    return record(found[1])


@pytest.mark.parametrize(
    "line", re.findall(r"^\| (?:DAVIS|bench), \d+ % kept \|.*$", FILL, re.M), ids=lambda line: line[2:20]
)
def test_table_of_fills(line: str) -> None:
    cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
    name, rate = re.findall(r"(\w+), (\d+) %", cells[0])[0]
    rows = linked(r"fills_\w+_[\d-]+\.json", FILL)["rows"]
    psnr = {r["fill"]: r["psnr"] for r in rows if r["set"] == name.lower() and r["keep_rate"] in (1.0, int(rate) / 100)}
    assert cells[1:] == [f"{psnr[fill]:.2f}" for fill in ("full rate", "lit", "hold", "linear")]


def test_the_paper_s_network() -> None:
    rows = linked(r"fills_\w+_[\d-]+\.json", FILL)["rows"]
    psnr = {(r["set"], r["keep_rate"]): r["psnr"] for r in rows if r["fill"] == "lit-paper"}
    davis = " / ".join(f"{psnr['davis', rate]:.2f}" for rate in (0.78, 0.62, 0.35))
    assert f"{davis} dB on DAVIS\nand {psnr['bench', 0.32]:.2f} dB on bench" in FILL


def test_demo() -> None:
    demo = linked(r"demo_\w+\.json", START)
    said = f"{100 * demo['keep_rate']:.1f} % of the cells kept, {demo['bytes']:,} bytes in all"
    assert said in " ".join(START.split()) and f"({demo['bits_per_pixel']:.3f} bits a pixel" in START
    assert f"PSNR {demo['psnr']:.1f} dB" in START and demo["weight_hash"] == SHIPPED


def test_mini_beside_the_paper() -> None:
    table = next(t for t in record("studies/sections/main.json")["tables"] if " davis " in t["caption"])
    at = [i for name in ("Keep", "PSNR", "SSIM", "LPIPS", "FVD") for i, c in enumerate(table["columns"]) if name in c]
    ours = {row[0]["text"]: [row[i]["value"] for i in at] for row in table["rows"]}
    full, kept = ours["full rate (backbone alone)"], ours["ours, at the paper's keep rate"]
    rows = {"`mini`, every cell": full, "`mini`, LIT": kept, "Cosmos-CV4x8x8, every cell": MAIN["davis"][COSMOS]}
    for name, (share, psnr, ssim, lpips, fvd) in rows.items():
        assert f"| {name} | {100 * share:.0f} % | {psnr:.2f} | {ssim:.3f} | {lpips:.3f} | {fvd:.0f} |" in README
    cosmos = MAIN["davis"][COSMOS]
    assert full[1] > cosmos.psnr and full[2] > cosmos.ssim and full[4] < cosmos.fvd and full[3] > cosmos.lpips
    assert "it is ahead of Cosmos in PSNR, SSIM and FVD; by LPIPS Cosmos is sharper" in README


def test_samples() -> None:
    found = record("samples_cpu.json")
    rows = found["rows"]
    assert found["weights"] == SHIPPED, "made with other weights: make samples"
    shown = next(row for row in rows if "film" in row)
    said = f"hold {shown['hold']['psnr']:.1f} dB, LIT {shown['lit']['psnr']:.1f} dB"
    assert said in README and said in page("docs/index.md")
    gaps = [row["x264"]["psnr"] - row["lit"]["psnr"] for row in rows]
    assert f"x264 is {min(gaps):.1f} to {max(gaps):.1f} dB better" in README and min(gaps) > 0
    assert all(row["lit"]["psnr"] > row["hold"]["psnr"] for row in rows), "as the page says"
    assert all(row["x264"]["bytes"] <= row["bytes"] for row in rows), "as many bytes as the token file"


def test_page_of_samples() -> None:
    spec = importlib.util.spec_from_file_location("make_samples", ROOT / "docs" / "make_samples.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["make_samples"] = made  # its dataclasses look themselves up
    spec.loader.exec_module(made)
    text = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
    assert text == made.page(record("samples_cpu.json")), "run: python docs/make_samples.py --page"
    films = {ROOT / "docs" / name for name in re.findall(r"samples/[\w-]+\.mp4", text)}
    assert len(films) == 12 and all(film.is_file() for film in films)
    assert sum(film.stat().st_size for film in films) < 6_000_000


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


@pytest.mark.parametrize("name", PAGES)
def test_no_mark_begins_a_line_of_a_paragraph(name: str) -> None:
    """Markdown would take it for a block of HTML, and end the paragraph there."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.findall(r"^ {0,3}<!--n [\w.-]+-->(?!\n).*", text, re.M)


def test_a_new_record_changes_the_pages_and_nothing_else_does(tmp_path: Path) -> None:
    for name in PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for place in [*WEIGHTS.glob("*.safetensors"), *WEIGHTS.glob("*.json")]:
        (tmp_path / "src/inlay/weights" / place.name).symlink_to(place)
    (tmp_path / "benchmarks").mkdir()
    for place in [*(ROOT / "benchmarks").glob("*.json"), *(ROOT / "benchmarks").glob("*.py")]:
        shutil.copy(place, tmp_path / "benchmarks" / place.name)
    shutil.copytree(ROOT / "benchmarks" / "studies" / "sections", tmp_path / "benchmarks" / "studies" / "sections")
    newer = linked(r"fills_\w+_[\d-]+\.json", FILL)
    psnr = {(r["set"], r["keep_rate"], r["fill"]): r["psnr"] for r in newer["rows"]}
    full, filled = psnr["davis", 1.0, "full rate"], psnr["davis", 0.78, "lit"]
    newer["rows"] = [row | {"psnr": row["psnr"] + 1} for row in newer["rows"]]
    (tmp_path / "benchmarks" / "fills_grid_cpu_2099-01-01.json").write_text(json.dumps(newer))
    rates = record("tokenize_rate_cpu_2026-11-20.json") | {"weight_hash": SHIPPED}
    (tmp_path / "benchmarks" / "tokenize_rate_cpu_2099-01-01.json").write_text(json.dumps(rates))
    reading = record("sparse_classifier_object_cpu_2026-11-20.json")
    reading["data"] = re.sub(r"weights \w+", f"weights {SHIPPED}", reading["data"])
    (tmp_path / "benchmarks" / "sparse_classifier_object_cpu_2099-01-01.json").write_text(json.dumps(reading))
    done = fill_numbers(tmp_path, "--check")
    said = f"fills.full.davis: says '{full:.2f} dB', the record '{full + 1:.2f} dB'"
    assert done.returncode == 1 and said in done.stderr
    assert fill_numbers(tmp_path).returncode == 0 and fill_numbers(tmp_path, "--check").returncode == 0
    fill = (tmp_path / "docs/fill.md").read_text(encoding="utf-8")
    assert f"| {full + 1:.2f} | **{filled + 1:.2f}** |" in fill
    assert "](../benchmarks/fills_grid_cpu_2099-01-01.json)" in fill
    readme, pack = ((tmp_path / name).read_text(encoding="utf-8") for name in ("README.md", "docs/pack.md"))
    assert "timed with earlier" not in readme and "of earlier weights" not in readme + pack, "records of these weights"
    for name in PAGES:
        made, told = ((root / name).read_text(encoding="utf-8") for root in (tmp_path, ROOT))
        assert MARK.sub("", made) == MARK.sub("", told), name


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/quick-start.md"])
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
    sections = [json.loads(p.read_text("utf-8")) for p in (ROOT / "benchmarks/studies/sections").glob("*.json")]
    measured = {section["name"]: section["setup"]["backbone"].rpartition(" ")[2] for section in sections}
    assert set(measured.values()) == set(re.findall(r"weights ([0-9a-f]{16})", told.split("##")[0])), "named on top"
    stale = measured["main"] != SHIPPED
    assert ("with the earlier weights" in README) == stale, "README says so where its table is of other weights"


def test_records_are_of_the_weights_that_ship() -> None:
    files = {"mini": "mini", "lit": "mini.lit", "lit-paper": "mini.lit-paper"}
    hashes = {name: load_weights(WEIGHTS / f"{file}.safetensors").hash for name, file in files.items()}
    assert linked(r"fills_\w+_[\d-]+\.json", FILL)["weights"] == hashes and hashes["mini"] == SHIPPED
    assert record("noise_floor_cpu.json")["weight_hash"] == SHIPPED
    assert linked(r"bits_davis_\w+_[\d-]+\.json")["setup"]["backbone"] == f"mini, weights {SHIPPED}"
    for path in (ROOT / "benchmarks").glob("container_cpu_*.json"):
        assert json.loads(path.read_text())["weights"] == SHIPPED
