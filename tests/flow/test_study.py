# SPDX-License-Identifier: Apache-2.0
"""Studies from videos to report: stopped and resumed, without weights, opened as HTML; eval, calibrate by command."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.cli.main import main
from inlay.errors import UsageError
from inlay.fill import Filler, Lit, LitConfig
from inlay.measure import MeasureConfig
from inlay.research.studies.catalogue import STUDIES, read_sections, run_all, run_study, write_page
from inlay.research.studies.datasets import ClipSpec, open_data
from inlay.research.studies.evaluate import Bench
from inlay.research.studies.records import Record, Store
from inlay.research.studies.rules import Setting
from inlay.research.studies.workspace import Workspace
from inlay.tokenizer import Tokenizer
from tests.conftest import moving_square

SPEC = ClipSpec(frames=9, size=32)
QUICK = ("psnr", "ssim", "error-level")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four videos of two chunks each, as arrays; three bear names of the val split."""
    place = tmp_path_factory.mktemp("davis")
    for i, name in enumerate(("dog", "goat", "judo", "bear")):
        clip = moving_square(18, 32, 32, seed=i, speed=1 + i).frames
        grain = torch.randint(0, 6, clip.shape, generator=torch.Generator().manual_seed(i), dtype=torch.uint8)
        np.save(place / f"davis17_{name}.npy", (clip.clamp_max(249) + grain).numpy())
    return place


@pytest.fixture(scope="module")
def tokenizer(tiny_mini) -> Tokenizer:
    torch.manual_seed(3)
    lit = Lit.build(LitConfig(width=32, heads=1, blocks=1, channels=tiny_mini.spec.channels)).eval()
    torch.nn.init.normal_(lit.get_submodule("out_proj").weight, std=0.02)
    return Tokenizer(tiny_mini, filler=Filler({"lit": lit}))


def workspace(tokenizer: Tokenizer, folder: Path, out: Path, metrics: tuple[str, ...] = QUICK) -> Workspace:
    data = open_data(folder, name="davis", spec=SPEC)
    bench = Bench(tokenizer, tau=0.3, measure=MeasureConfig())
    return Workspace(bench=bench, store=Store(out), data={"davis": data}, metrics=metrics)


def tables(out: Path, *names: str) -> list[str]:
    return [(out / "tables" / f"{name}.md").read_text() for name in names]


@pytest.fixture(scope="module")
def whole(tokenizer: Tokenizer, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every study, run through."""
    out = tmp_path_factory.mktemp("out")
    done, failed = run_all(workspace(tokenizer, folder, out), list(STUDIES))
    assert not failed and list(done) == list(STUDIES)
    return out


class Stopped(Exception):
    """What a kill looks like from inside."""


@pytest.mark.parametrize("study", ["main", "ablation"])
def test_a_study_stopped_half_way_and_resumed_gives_the_same_tables(
    study: str, whole: Path, tokenizer: Tokenizer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = Store.write, [7]

    def stop_after_seven(self: Store, record: Record) -> None:
        if left[0] == 0:
            raise Stopped
        left[0] -= 1
        write(self, record)

    monkeypatch.setattr(Store, "write", stop_after_seven)
    with pytest.raises(Stopped):
        run_study(workspace(tokenizer, folder, tmp_path), study)
    monkeypatch.setattr(Store, "write", write)
    kept = {p: p.read_bytes() for p in (tmp_path / "records").rglob("*.json")}
    assert len(kept) == 7 and not (tmp_path / "tables").exists()
    run_study(workspace(tokenizer, folder, tmp_path), study)
    assert tables(tmp_path, study) == tables(whole, study)
    assert all(p.read_bytes() == data for p, data in kept.items()), "what was done is not done again"


def test_a_second_run_computes_nothing(
    whole: Path, tokenizer: Tokenizer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tables(whole, "main", "ablation", "sweep", "fill-sweep", "flicker", "cost", "streaming")
    monkeypatch.setattr(Bench, "scene", lambda *_: pytest.fail("a clip was encoded again"))
    names = ["main", "ablation", "sweep", "fill-sweep", "flicker", "cost", "streaming"]
    done, failed = run_all(workspace(tokenizer, folder, whole), names)
    assert not failed and len(done) == 7
    assert tables(whole, *done) == before


def test_networks_given_by_hand_are_compared_with_the_first_of_them(
    tokenizer: Tokenizer, folder: Path, tmp_path: Path
) -> None:
    lit = tokenizer.filler.lits["lit"]
    noisy = copy.deepcopy(lit)
    torch.nn.init.normal_(noisy.get_submodule("out_proj").weight, std=0.5)
    lits = {"lit": lit, "first": copy.deepcopy(lit), "noisy": noisy}
    more = Tokenizer(tokenizer.backbone, filler=Filler(lits))
    section = run_study(workspace(more, folder, tmp_path), "flicker")
    assert "Given with --lit: first, noisy." in section.text
    told = {f.claim: f.holds for f in section.findings}
    assert told["noisy flickers less than first"] is False and "first flickers less than lit" not in told
    *_, paired = section.tables
    named = [row[0].text for row in paired.rows]
    assert "first against noisy (all)" in named and "noisy against ours (all)" not in named
    difference = {row[0].text: row[2].value for row in paired.rows}
    assert difference["first against ours (all)"] == 0 > difference["first against noisy (all)"]


def test_a_command_is_told_without_the_places_of_this_machine() -> None:
    from inlay.cli.screen import public_command

    words = ["study", "/a/b/davis", "--lit", "one=/a/b/c.safetensors", "two=runs/d", "--out=../e", "/a=b/c/d", "/f"]
    told = ["study", "b/davis", "--lit", "one=b/c.safetensors", "two=runs/d", "--out=../e", "c/d", "f"]
    assert shlex.split(public_command(words)) == ["inlay", *told]


def test_studies_share_what_they_have_in_common(whole: Path) -> None:
    def keys(study: str) -> set[str]:
        return {p.stem.rsplit(".", 1)[-1] for p in (whole / "records" / study).glob("*.json")}

    assert len(keys("ablation") & keys("fill-sweep")) >= 3 * 3  # lit, hold and linear at 62 % of the three val clips
    assert len(keys("main") & keys("sweep")) == 3


def test_a_damaged_record_is_made_again(whole: Path, tokenizer: Tokenizer, folder: Path, tmp_path: Path) -> None:
    work = workspace(tokenizer, folder, tmp_path)
    data, settings = work.data["davis"].first(1), [Setting()]
    first = work.collect("eval", data, settings)
    (path,) = (tmp_path / "records" / "eval").glob("*.json")
    path.write_text(path.read_text()[:100])
    again = workspace(tokenizer, folder, tmp_path).collect("eval", data, settings)
    assert again[settings[0]][0].reading == first[settings[0]][0].reading
    assert json.loads(path.read_text())["nfe"] == 0


def test_metrics_asked_for_later_are_added(tokenizer: Tokenizer, folder: Path, tmp_path: Path) -> None:
    work = workspace(tokenizer, folder, tmp_path)
    data, setting = work.data["davis"].first(1), Setting()
    one = work.collect("eval", data, [setting], ("psnr",))[setting][0]
    two = work.collect("eval", data, [setting], ("psnr", "ssim"))[setting][0]
    assert set(one.reading.values) == {"psnr"} and set(two.reading.values) == {"psnr", "ssim"}
    assert one.reading.values["psnr"] == two.reading.values["psnr"]


def test_without_weights_the_others_are_reported_and_the_command_is_named(
    tokenizer: Tokenizer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inlay.measure.weights.weight_folders", lambda: [tmp_path / "none"])
    work = workspace(tokenizer, folder, tmp_path, ("psnr", "lpips", "fvd"))
    section = run_study(work, "main")
    said = " ".join(section.text)
    assert "lpips was not measured" in said and "fvd was not measured" in said and "inlay fetch metrics" in said
    row = dict(zip(section.tables[0].columns, section.tables[0].rows[0], strict=True))
    assert row["PSNR ↑"].value is not None and row["LPIPS ↓"].text == row["FVD ↓"].text == "-"


class Reader(HTMLParser):
    """Counts what is opened and closed, and where things come from."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.links: list[str] = []
        self.captions: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in ("meta", "img", "link", "br", "path", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "caption":
            self.captions.append(data)


def test_the_report_is_whole_and_needs_nothing_else(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    page = Reader()
    page.feed(text)
    assert not page.open, "every tag is closed"
    sections = read_sections(Store(whole))
    assert [s.name for s in sections] == list(STUDIES)
    assert page.captions == [t.caption for s in sections for t in s.tables]
    figures = [f for s in sections for f in s.figures]
    films = {f.file for s in sections for f in s.films}
    assert page.count["img"] == sum(not f.panels for f in figures) + len(films) > 8 and len(films) == 2
    assert sum(len(f.panels) for f in figures) > 4, "plots are drawn from their numbers"
    assert all(link.startswith(("data:image/jpeg;base64,", "data:image/avif;base64,", "#")) for link in page.links)
    assert all(s.setup["commit"] in text and s.setup["backbone"] in text for s in sections)
    assert "http" not in re.sub(r"base64,[^\"]+", "", text)
    cells = [c for s in sections for t in s.tables for row in t.rows for c in row]
    assert text.count("<td") == len(cells)


def test_cost_counts_evaluations(whole: Path) -> None:
    found: dict[str, set[int]] = {}
    for path in (whole / "records" / "cost").glob("*.json"):
        record = json.loads(path.read_text())
        found.setdefault(record["setting"]["rule"], set()).add(record["nfe"])
    assert found["ours"] == found["full"] == {0} and found["router"] == {1} and min(found["search"]) >= 4


def test_ablation_is_at_one_keep_rate(whole: Path) -> None:
    section = next(s for s in read_sections(Store(whole)) if s.name == "ablation")
    rates = [row[1].value for table in section.tables for row in table.rows if not row[0].text.startswith("paper")]
    assert len(rates) == 4 + 2 + 3
    assert max(rates) - min(rates) < 0.02, "matched by bisection"


def test_the_page_of_results_comes_from_the_sections_alone(whole: Path, tmp_path: Path) -> None:
    page = write_page(Store(whole), tmp_path / "docs" / "results.md")
    text = page.read_text()
    assert all(f"## {s.title}" in text for s in read_sections(Store(whole)))
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert links and all((page.parent / link).is_file() for link in links)
    with pytest.raises(UsageError, match="no study has left"):
        write_page(Store(tmp_path / "empty"), tmp_path / "r.md")


MODEL = ("--backbone", "mini-untrained", "--device", "cpu", "--frames", "9", "--side", "32")


def run(*words: object) -> int:
    return main([str(w) for w in words])


def test_eval_of_rules_by_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("eval", folder, *MODEL, "--tau", 0.3, "--rule", "ours,router", "--limit", 2, "--out", tmp_path, "--json")
    assert run(*words) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record["rules"]) == {"ours", "router"}
    assert (record["rules"]["ours"]["nfe"], record["rules"]["router"]["nfe"]) == (0, 1)
    assert record["data"]["spec"]["frames"] == 9 and len(record["rules"]["ours"]["clips"]) == 2
    assert len(list((tmp_path / "records" / "eval").glob("*.json"))) == 4
    assert run("eval", folder, *MODEL, "--rule", "our") == 2
    assert "did you mean 'ours'" in capsys.readouterr().err


def test_eval_of_another_systems_reconstructions(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "theirs"
    given.mkdir()
    for name in ("davis17_dog", "davis17_goat"):
        x = np.load(folder / f"{name}.npy")[:9]
        np.save(given / f"{name}.npy", np.clip(x.astype(int) + 5, 0, 255).astype(np.uint8))
    np.save(given / "davis17_judo.npy", np.zeros((4, 32, 32, 3), np.uint8))
    words = ("eval", folder, "--reconstructions", given, "--metrics", "psnr,error-level", *MODEL[2:], "--json")
    assert run(*words) == 0
    shown = capsys.readouterr()
    (scored,) = json.loads(shown.out)["rules"].values()
    assert set(scored["clips"]) == {"dog", "goat"}
    assert scored["scores"]["error-level"]["value"] == pytest.approx(5, abs=0.3)
    assert scored["scores"]["psnr"]["value"] == pytest.approx(20 * np.log10(255 / 5), abs=0.3)
    assert "judo: the clip is 9x32x32" in shown.err and "bear: there is no reconstruction" in shown.err
    assert run("eval", folder, "--reconstructions", tmp_path / "none", *MODEL[2:]) == 2


def test_eval_leaves_one_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    words = ("eval", folder, *MODEL, "--tau", 0.3, "--rule", "ours,hold", "--limit", 2, "--metrics", "psnr")
    assert run(*words, "--report", page, "--json") == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(page)
    text = page.read_text()
    reader = Reader()
    reader.feed(text)
    assert not reader.open and reader.captions == [f"Rules on {folder.name} (2 clips)", "Every clip"]
    assert text.count('<svg class="plot"') == 1, "what the page begins with is not drawn again"
    assert text.count("<tr>") == 2 + 2 + 4 and text.count('class="dot"') == 4
    assert text.count("data:image/avif;base64,") == 4, "two rules on two clips"
    assert "<dt>commit</dt>" in text and "<dt>command</dt>" in text
    assert re.search(r'<p class="lead">Measured: .*\. On .* ours has .*\. Beside it: hold [\d.]+ dB with', text)
    assert run(*words) == 0
    table = capsys.readouterr().out
    assert "best  * marks the best" in table and table.count(" * ") == 1 + 1, "one star in the only column"
    for more, message in ((("--report", page), "--force"), (("--report", tmp_path / "r.pdf"), ".html")):
        assert run(*words, *more) == 2
        assert message in capsys.readouterr().err
    both = ("--out", tmp_path / "kept", "--report", tmp_path / "kept" / "report")
    assert run(*words, *both) == 2 and not (tmp_path / "kept").exists(), "a report has a suffix; no folder is left"
    assert run(*words, *both[:-1], tmp_path / "kept" / "report.html") == 0, "the report beside its records"
    np.save(tmp_path / "davis17_dog.npy", np.load(folder / "davis17_dog.npy")[:9])
    words = ("eval", folder, "--reconstructions", tmp_path, "--metrics", "psnr", *MODEL[2:])
    assert run(*words, "--report", page, "--force") == 0
    assert page.read_text().count("data:image/avif;base64,") == 1


def test_calibrate_by_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from inlay.masking import Profile

    out = tmp_path / "mini.profile.json"
    assert run("calibrate", folder, *MODEL, "--out", out, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    profile = Profile.load(out)
    assert profile.tau == record["tau"] > 0 and profile.clips == 4 and len(profile.first_mean) == 16
    assert profile.keep_rates[0] == 1.0 and profile.keep_rates[-1] == pytest.approx(1 / 3, abs=0.1)
    assert run("calibrate", folder, *MODEL, "--out", out) == 2
    assert "--force" in capsys.readouterr().err


def test_study_by_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("study", "masks", "--data-davis", folder, "--out", tmp_path / "o", *MODEL, "--tau", 0.3, "--limit", 2)
    assert run(*words) == 0
    assert "report" in capsys.readouterr().out
    assert run("study", "docs", "--out", tmp_path / "o", "--page", tmp_path / "results.md") == 0
    assert "Masks" in (tmp_path / "results.md").read_text()
    capsys.readouterr()
    for words, message in (
        (("study", "mains", "--out", tmp_path), "did you mean 'main'"),
        (("study", "main", "--out", tmp_path), "--data-davis DIR"),
        (("study", "ablation", "--out", tmp_path, "--data-bench", folder, *MODEL, "--tau", 0.3), "--data-davis"),
        (("study", "main", "--out", tmp_path, "--data-davis", folder, *MODEL), "inlay calibrate"),
    ):
        assert run(*words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_studies_open_without_optional_packages() -> None:
    heavy = "('av', 'typer', 'matplotlib', 'cv2', 'rich', 'scipy')"
    code = f"import sys, inlay.research.studies.catalogue; print([m for m in {heavy} "
    done = subprocess.run([sys.executable, "-c", code + "if m in sys.modules])"], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
