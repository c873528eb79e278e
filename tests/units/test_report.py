# SPDX-License-Identifier: Apache-2.0
"""Sections that survive JSON, and the page that holds them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from inlay.errors import MissingError
from inlay.research.studies.opening import headline, sentences
from inlay.research.studies.pictures import film
from inlay.research.studies.records import restored
from inlay.research.studies.report import html_report, results_page
from inlay.research.studies.sections import Figure, Finding, Section, Table, axis, number, percent, word
from tests.conftest import moving_square
from tests.units.test_draw import LINES


def section(root: Path) -> Section:
    (root / "films").mkdir(exist_ok=True)
    clip = moving_square(9, 32, 32)
    (root / "films" / "a.avif").write_bytes(film(clip, clip))
    rows = tuple((word(name), number(value, 1)) for name, value in (("b", 9.0), ("c", 10.0), ("a", 1.5)))
    return Section(
        name="main",
        title="Main (Table 2)",
        text=("A <b>text</b>.",),
        tables=(Table(caption="Numbers", columns=("Name", "Value"), rows=rows),),
        figures=(Figure(file="", caption="Quality.", panels=(LINES,)), Figure(file="figures/gone.png", caption="Gone")),
        films=(Figure(file="films/a.avif", caption="A film"),),
        findings=(Finding(claim="it holds", holds=True),),
        setup={"commit": "abc123+", "tau": 0.5, "command": "inlay study main --out x"},
    )


def test_a_section_survives_json(tmp_path: Path) -> None:
    one = section(tmp_path)
    assert restored(Section, json.loads(json.dumps(one.record()))) == one
    old = {k: v for k, v in one.record().items() if k != "films"}
    old["figures"] = [{"file": "x.png", "caption": "as records were before"}]
    assert restored(Section, old).figures[0].panels == ()


def absent(panel: object) -> str:
    raise MissingError("no matplotlib")


def test_the_page_holds_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = section(tmp_path)
    text = html_report([one, one], tmp_path)
    assert text.count("data:image/avif;base64,") == 1, "a film that two sections show stands there once"
    assert text.count('<svg class="plot"') == 1, "the plot that the page begins with is not drawn again"
    assert html_report([one] * 3, tmp_path).count('<svg class="plot"') == 4 and "Gone" not in text
    assert "<b>text</b>" not in text and "&lt;b&gt;" in text
    foot = text[text.index("<footer") :]
    assert foot.count("abc123+") == 1 and "inlay study main --out x" in foot
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    monkeypatch.setattr("inlay.research.studies.report.svg", absent)
    assert "No plot: no matplotlib" in html_report([one], tmp_path)
    page = results_page([one])
    assert "gone.png" in page and "]()" not in page


def told(root: Path) -> Section:
    values = (("full rate (x)", 1.0, 31.0), ("ours", 0.62, 28.3))
    rows = tuple((word(name), percent(kept), number(db, 2)) for name, kept, db in values)
    table = Table(caption="Reconstruction on davis (3 clips)", columns=("Rule", "Keep rate ↓", "PSNR ↑"), rows=rows)
    spec = {"frames": 33, "size": 256, "interval": 1}
    data = {"name": "davis", "clips": ["a", "b", "c"], "spec": spec, "split": "val"}
    setup = {"backbone": "mini, weights abc", "data": [data]}
    return replace(section(root), tables=(table,), setup=setup)


def test_a_report_begins_with_three_sentences_and_one_plot(tmp_path: Path) -> None:
    said = sentences([told(tmp_path)])
    assert said == (
        "Measured: mini (weights abc) on davis (3 clips).",
        "On davis ours has 28.30 dB with 62.0 % of the cells, the backbone alone 31.00 dB.",
        "1 of 1 relations that the paper states, or that follow from it, hold here.",
    )
    text = html_report([told(tmp_path)], tmp_path)
    head = text[text.index("<h1>") : text.index("<nav>")]
    assert all(sentence in head for sentence in said) and head.count("<svg") == 1
    page = results_page([told(tmp_path)], headline_file="x/headline.png")
    assert page.index(said[0]) < page.index(said[2]) < page.index("x/headline.png") < page.index("## In short")
    assert sentences([section(tmp_path)])[0].startswith("1 of 1") and headline([Section(name="a", title="A")]) is None


def test_without_relations_the_third_sentence_is_on_the_other_rules_or_on_the_clips(tmp_path: Path) -> None:
    whole = replace(told(tmp_path), findings=())
    table, columns = whole.tables[0], ("Clip", "Rule", "Keep rate ↓", "PSNR ↑")
    rows = (("bear", "ours", 27.1), ("bear", "full", 33.0), ("boat", "ours", 30.2))
    body = tuple((word(clip), word(rule), percent(0.6), number(db, 2)) for clip, rule, db in rows)
    by_clip = Table(caption="Every clip", columns=columns, rows=body)
    said = sentences([replace(whole, tables=(table, by_clip))])
    assert said[2] == "The clips lie between 27.10 dB (bear) and 30.20 dB (boat)."
    both = replace(table, rows=(*table.rows, (word("hold"), percent(0.62), number(27.5, 2))))
    assert sentences([replace(whole, tables=(both, by_clip))])[2] == "Beside it: hold 27.50 dB with 62.0 %."


def test_the_plot_of_a_report_is_the_one_that_compares_most() -> None:
    for label in (axis("psnr"), "psnr"):  # as plots have it now, and in earlier records
        best = replace(LINES, y_label=label)
        one = replace(best, series=LINES.series[:1])
        other = replace(LINES, y_label=axis("ssim"), series=LINES.series * 2)
        figures = (Figure(file="", caption="", panels=(one, other)), Figure(file="", caption="", panels=(best,)))
        assert headline([Section(name="a", title="A", figures=figures)]) == best


def test_an_axis_has_the_name_that_people_write_and_its_unit() -> None:
    assert [axis(name) for name in ("psnr", "ssim", "flicker")] == ["PSNR, dB", "SSIM", "flicker, /255"]


def test_studies_are_folded_where_there_are_many(tmp_path: Path) -> None:
    one = section(tmp_path)
    assert "<details open>" in html_report([one], tmp_path)
    assert "<details open>" not in html_report([one, one, one], tmp_path)
    page = results_page([one])
    assert '## Main (Table 2)\n\n<details markdown="1"><summary>1 table, 1 picture</summary>' in page
    assert page.count("<details") == page.count("</details>") == 1


def test_the_page_begins_with_what_does_not_hold_and_why() -> None:
    found = (
        Finding(claim="a is above b", holds=True, detail="2 against 1"),
        Finding(claim="c is above d", holds=False, detail="1 against 2", why="d had more time"),
        Finding(claim="e is above f", holds=False),
        Finding(claim="g is above h", holds=None),
    )
    text = results_page([Section(name="main", title="Quality (Table 2)", findings=found)])
    head = text.split("## Quality")[0]
    assert "1 of 3 relations hold" in head and "| Quality (Table 2) | 3 | 1 |" in head
    assert "This does not hold, likely because d had more time:\n\n- Table 2: c is above d (1 against 2)." in head
    assert "This does not hold:\n\n- Table 2: e is above f." in head and "a is above b" not in head
    assert "- c is above d: does not hold (1 against 2). Likely reason: d had more time." in text
    assert "In short" not in results_page([Section(name="masks", title="Masks")])


def test_a_narrow_table_puts_intervals_below_and_leaves_out_what_says_the_same() -> None:
    row = (word("ours, a"), number(28.27, 2, 27.9, 28.6), number(3.0, 1), percent(0.62, 0.5, 0.7))
    table = Table(caption="T", columns=("Rule", "PSNR ↑", "error-level ↓", "Keep rate ↓"), rows=(row,))
    last = table.markdown(narrow=True).splitlines()[-1]
    keep = "62.0&nbsp;%<br><small>[50.0,&nbsp;70.0]</small>"
    assert last == f"| ours, a | 28.27<br><small>[27.90,&nbsp;28.60]</small> | {keep} |"
    assert table.markdown().splitlines()[-1] == "| ours, a | 28.27 [27.90, 28.60] | 3.0 | 62.0 % [50.0, 70.0] |"
