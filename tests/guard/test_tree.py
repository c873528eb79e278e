# SPDX-License-Identifier: Apache-2.0
"""The files themselves: small, licensed, and silent about any one machine."""

from __future__ import annotations

import ast
import re

from tests.guard.tree import PACKAGE, ROOT, project_files, text_files

LARGEST = 500_000  # bytes, outside src/inlay/weights
HOSTS = {
    "www.apache.org", "arxiv.org", "creativecommons.org", "doi.org", "github.com", "keepachangelog.com",
    "peach.blender.org", "semver.org",
}  # fmt: skip
SOMEBODYS_PLACE = re.compile(r"(?<![\w.~$}/-])/(home|root|work|mnt|opt|srv|Users)/[\w.]")
LOOSE_END = re.compile(r"\b(TODO|FIXME|XXX)\b(?!.{0,3}#\d)")
SELF = {"tests/guard/test_tree.py"}


def names(files: list) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in files]


def test_no_large_files() -> None:
    large = [p for p in project_files() if p.stat().st_size > LARGEST and PACKAGE / "weights" not in p.parents]
    assert not large, f"over {LARGEST:,} bytes: {names(large)}"


def test_no_byte_code_and_no_catch_all_modules() -> None:
    bad = [p for p in project_files() if p.suffix == ".pyc" or re.fullmatch(r"(utils?|helpers?|misc)\.py", p.name)]
    assert not bad, names(bad)


def test_names_of_files_suit_every_system() -> None:
    found = names(project_files())
    devices = re.compile(r"(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.[^/]*)?(/|$)", re.I)
    assert not [name for name in found if re.search(r'[<>:"\\|?*]|[. ](/|$)', name) or devices.search(name)]
    assert len({name.lower() for name in found}) == len(found), "two names differ in nothing but capitals"


def test_every_python_file_has_licence_and_docstring() -> None:
    for path in (p for p in text_files() if p.suffix == ".py" and p.stat().st_size):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n"), f"{path}: first line is not the licence tag"
        assert ast.get_docstring(ast.parse(text)), f"{path}: no docstring says what it is for"


def test_no_place_of_one_machine_and_no_loose_ends() -> None:
    for path in text_files():
        if str(path.relative_to(ROOT)) in SELF:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not SOMEBODYS_PLACE.search(line), f"{path}:{number}: names a folder of one machine: {line.strip()}"
            assert not LOOSE_END.search(line), f"{path}:{number}: a loose end without an issue number: {line.strip()}"


def test_links_lead_to_known_hosts() -> None:
    for path in text_files():
        for host in re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8")):
            assert host in HOSTS, f"{path}: links to {host}; add it to HOSTS if readers need it"


def test_licence_is_complete() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
