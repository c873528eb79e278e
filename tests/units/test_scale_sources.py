# SPDX-License-Identifier: Apache-2.0
"""What becomes of a SOURCE: folders with everything in them, lists, tables, tars, addresses."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from inlay.errors import UsageError, VideoError
from inlay.scale.feed import fetched
from inlay.scale.sources import SourceItem, dump_sources, find_sources, parse_sources
from inlay.scale.tars import braces


def names(items: list[SourceItem]) -> list[str]:
    return [item.name for item in items]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "videos"
    (root / "below").mkdir(parents=True)
    for name in ("b.mp4", "a.MKV", "below/ü 影片.webm", "notes.md"):
        (root / name).write_bytes(name.encode())
    return root


def test_a_folder_is_its_videos_in_order_of_their_names(folder: Path) -> None:
    assert names(find_sources(str(folder))) == ["a.MKV", "b.mp4", "below/ü 影片.webm"]


def test_links_are_followed_once_and_broken_ones_are_told(folder: Path) -> None:
    (folder / "c.mp4").symlink_to(folder / "b.mp4")
    (folder / "d.mp4").symlink_to(folder / "nowhere.mp4")
    (folder / "round").symlink_to(folder, target_is_directory=True)
    found = {item.name: item.problem for item in find_sources(str(folder))}
    assert found == {
        "a.MKV": None, "b.mp4": None, "below/ü 影片.webm": None, "c.mp4": None, "d.mp4": "is a link to nothing"
    }  # fmt: skip


def test_names_that_are_no_text_survive(folder: Path) -> None:
    strange = os.fsdecode(b"x\xff.mp4")
    (folder / strange).write_bytes(b"strange")
    items = find_sources(str(folder))
    assert "x\\xff.mp4" in names(items)
    again = parse_sources(dump_sources(items))
    assert again == items
    with fetched(next(i for i in again if i.name == "x\\xff.mp4")) as found:
        assert found.media.read() == b"strange"  # a file, since its name cannot be handed on


def test_a_list_counts_from_where_it_lies_and_names_each_row_once(folder: Path) -> None:
    (folder.parent / "some.txt").write_text(f"videos/b.mp4\n\n{folder}/a.MKV\nvideos/b.mp4\nvideos/gone.mp4\n")
    items = find_sources(str(folder.parent / "some.txt"))
    assert names(items) == ["videos/b.mp4", f"{folder}/a.MKV", "videos/gone.mp4"]
    assert [i.problem for i in items] == [None, None, "there is no such file"]


def test_tables_carry_captions(folder: Path) -> None:
    rows = [("videos/b.mp4", "a dog, running"), ("videos/a.MKV", "")]
    place = folder.parent
    (place / "t.csv").write_text('video,text\nvideos/b.mp4,"a dog, running"\nvideos/a.MKV,\n', encoding="utf-8-sig")
    (place / "t.jsonl").write_text("".join(json.dumps({"path": p, "caption": c}) + "\n" for p, c in rows))
    for table in ("t.csv", "t.jsonl"):
        items = find_sources(str(place / table))
        assert [(i.name, i.caption) for i in items] == [("videos/b.mp4", "a dog, running"), ("videos/a.MKV", None)]


def test_rows_end_where_lines_do(folder: Path) -> None:
    """Captions from the web hold what Unicode calls ends of lines."""
    row = json.dumps({"path": "videos/b.mp4", "caption": "two\u2028lines\x85"}, ensure_ascii=False)
    (folder.parent / "t.jsonl").write_text(f"{row}\r\n", encoding="utf-8", newline="")
    assert [i.caption for i in find_sources(str(folder.parent / "t.jsonl"))] == ["two\u2028lines\x85"]
    (folder.parent / "t.txt").write_text("videos/a\u2028b.mp4\r\nvideos/b.mp4\n", encoding="utf-8", newline="")
    assert names(find_sources(str(folder.parent / "t.txt"))) == ["videos/a\u2028b.mp4", "videos/b.mp4"]


@pytest.mark.parametrize("named", [{}, {"path_column": "video"}])
def test_columns_with_any_name_are_told_in_one_line(tmp_path: Path, named: dict[str, str]) -> None:
    header = ",".join(['"two\nlines"', *(f"column {i} {'x' * 90}" for i in range(40))])
    (tmp_path / "t.csv").write_text(f"{header}\n{'1,' * 40}1\n")
    with pytest.raises(UsageError) as refused:
        find_sources(str(tmp_path / "t.csv"), **named)
    assert "two\\nlines" in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 1000


def test_parquet_tables_and_named_columns(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"where": ["videos/b.mp4"], "what": ["a dog"], "n": [3]})
    parquet.write_table(table, folder.parent / "t.parquet")
    with pytest.raises(UsageError, match=r"none of its columns .where, what. is called path"):
        find_sources(str(folder.parent / "t.parquet"))
    items = find_sources(str(folder.parent / "t.parquet"), path_column="where", caption_column="what")
    assert [(i.name, i.caption) for i in items] == [("videos/b.mp4", "a dog")]


def make_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_the_videos_of_a_tar_with_their_captions(tmp_path: Path) -> None:
    files = {"a.mp4": b"A" * 700, "a.txt": b"first\n", "b.json": b'{"caption": "second"}', "b.mp4": b"B", "c.mp4": b"C"}
    make_tar(tmp_path / "x-00.tar", files)
    make_tar(tmp_path / "x-01.tar", {"d.mp4": b"D"})
    items = find_sources(str(tmp_path / "x-{00..01}.tar"))
    assert [(i.name.rpartition("/")[2], i.caption) for i in items] == [
        ("x-00.tar!a.mp4", "first"), ("x-00.tar!b.mp4", "second"), ("x-00.tar!c.mp4", None), ("x-01.tar!d.mp4", None)
    ]  # fmt: skip
    for item, data in zip(items, (b"A" * 700, b"B", b"C", b"D"), strict=True):
        with fetched(item) as found:
            assert found.media.read() == data


def test_a_member_of_a_tar_is_listed_by_its_whole_name(tmp_path: Path) -> None:
    (item,) = find_sources(str(make_tar(tmp_path / "x!.tar", {"we!ird.mp4": b"A"})))
    assert item.path == f"tar://we!ird.mp4::{tmp_path}/x!.tar"
    (tmp_path / "again.csv").write_text(f"path\n{item.path}\n")
    with fetched(find_sources(str(tmp_path / "again.csv"))[0]) as found:
        assert found.media.read() == b"A"


def test_captions_of_a_plain_tar_are_found_wherever_they_lie(tmp_path: Path) -> None:
    files = {"b.json": b'{"caption": "second"}', "a.mp4": b"A", "b.mp4": b"B", "c.mp4": b"C", "a.txt": b"first"}
    items = find_sources(str(make_tar(tmp_path / "x.tar", files)))
    assert [(i.name, i.caption) for i in items] == [
        ("x.tar!a.mp4", "first"), ("x.tar!b.mp4", "second"), ("x.tar!c.mp4", None)
    ]  # fmt: skip


def test_a_tar_with_damage_says_so_and_keeps_what_comes_before(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", {"a.mp4": b"A", "b.mp4": b"B" * 600, "c.mp4": b"C"})
    data = bytearray(path.read_bytes())
    data[1024:1100] = b"\x07" * 76  # the header of b
    path.write_bytes(data)
    items = find_sources(str(path))
    assert [(i.name, bool(i.problem)) for i in items] == [("x.tar!a.mp4", False), ("x.tar", True)]


def test_a_compressed_tar_is_told_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"")
    (item,) = find_sources(str(tmp_path))
    assert "compressed" in (item.problem or "")


def test_any_address_of_fsspec(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
        archive.writestr("in/b.mp4", b"B")
        archive.writestr("in/a.mp4", b"A")
    items = find_sources(f"zip://in::{tmp_path}/v.zip")
    assert names(items) == ["a.mp4", "b.mp4"]
    with fetched(items[1]) as found:
        assert found.media.read() == b"B"


@pytest.mark.parametrize(
    ("source", "error"), [("nowhere", "does not exist"), ("empty", "no videos"), ("what.xyz", "neither a folder")]
)
def test_what_is_no_source_is_refused(tmp_path: Path, source: str, error: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "what.xyz").touch()
    with pytest.raises((UsageError, VideoError), match=error):
        find_sources(str(tmp_path / source))


def test_braces_stand_for_all_their_numbers() -> None:
    assert braces("a{1..2}-{08..09}") == ["a1-08", "a1-09", "a2-08", "a2-09"]


def test_a_pattern_of_a_billion_names_is_refused_at_once() -> None:
    for pattern in ("x-{0..999999999}.tar", "x-{0..9999}-{0..9999}.tar", "{0..999999999999999999}"):
        with pytest.raises(UsageError, match="stands for"):
            find_sources(pattern)
    assert braces("a{5..4}") == []
    assert braces("a{" + "9" * 5000 + "..1}") == ["a{" + "9" * 5000 + "..1}"], "no range that anybody could mean"


DEEP = "[" * 100_000 + "]" * 100_000
POISON = {  # of rows in a list, each beside a good one -> what the quarantine list says
    f'{{"path": "b.mp4", "caption": {DEEP}}}': "nested too deeply",
    '{"path": "b.mp4"': "not JSON",
    "[1, 2]": "not a JSON object",
    '{"path": 5}': "no path",
    '{"caption": "of nothing"}': "no path",
    '{"path": "b\\u0000.mp4"}': "no name of a file",
    '{"path": "\\ud800.mp4"}': "no name of a file",
    f'{{"path": "b.mp4", "caption": {"9" * 5000}}}': "not JSON",
}


@pytest.mark.parametrize("row", POISON, ids=[*POISON.values()])
def test_a_poisoned_row_is_no_harm_to_the_others(folder: Path, row: str) -> None:
    rows = ['{"path": "a.MKV", "caption": "good"}', row, '{"path": "b.mp4", "caption": "half \\ud800 a letter"}']
    (folder / "list.jsonl").write_text("\n".join(rows))
    first, bad, last = find_sources(str(folder / "list.jsonl"))
    assert (first.caption, first.problem) == ("good", None)
    assert bad.problem is not None and POISON[row] in bad.problem and len(bad.problem) < 300
    assert last.problem is None and last.caption == "half \\ud800 a letter"
    assert parse_sources(dump_sources([first, bad, last])) == [first, bad, last]
    for item in (first, bad, last):
        f"{item.name}{item.caption}{item.path}".encode()  # a manifest is text


def test_poisoned_rows_may_come_first(folder: Path) -> None:
    (folder / "list.jsonl").write_text(f'{DEEP}\n{{"video": "b.mp4"}}\n')
    bad, good = find_sources(str(folder / "list.jsonl"))
    assert bad.problem is not None and good.name == "b.mp4" and good.problem is None


def test_a_nul_in_a_csv_is_one_row(folder: Path) -> None:
    (folder / "list.csv").write_text("path,caption\na.MKV,x\nb\0.mp4,y\nb.mp4,z\n")
    assert [item.problem is None for item in find_sources(str(folder / "list.csv"))] == [True, False, True]


def test_a_poisoned_caption_in_a_tar(tmp_path: Path) -> None:
    files = {"a.mp4": b"A", "a.json": f'{{"caption": {DEEP}}}'.encode(), "b.mp4": b"B"}
    files |= {"b.json": b'{"caption": "\\ud800"}', "c\udcff.mp4": b"C"}
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    found = find_sources(str(tmp_path / "x.tar"))
    assert [item.caption for item in found] == [None, "\\ud800", None]
    assert all(item.problem is None for item in found)
    for item in found:
        f"{item.name}{item.caption}{item.path}".encode()
    with fetched(found[2]) as copy:
        assert copy.media.read() == b"C"


def test_a_tar_of_nested_headers_is_damaged(tmp_path: Path) -> None:
    """Each long name announces the next: Python's reader calls itself for every one of them."""
    header = tarfile.TarInfo("@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    block = header.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    (tmp_path / "x.tar").write_bytes(block * 20_000)
    (bad,) = find_sources(str(tmp_path / "x.tar"))
    assert bad.problem is not None and "damaged" in bad.problem
