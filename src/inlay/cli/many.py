# SPDX-License-Identifier: Apache-2.0
"""Several inputs for one command: files, folders and patterns; one that fails does not lose the others."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from inlay.cli.failures import explain
from inlay.cli.paths import STREAM, TOKEN_SUFFIX
from inlay.cli.screen import Rows, Screen, one_line
from inlay.errors import InlayError, TokenFileError, UsageError, VideoError
from inlay.files import check_folder, portable_name, too_long

DECODED = ".decoded"  # at the end of the name of what `inlay decode` wrote


@dataclass(frozen=True, kw_only=True)
class Input:
    """One thing to do: what is read, and its place below a folder of results, without a suffix."""

    source: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a command was given. One file is reported in full, many with a line each."""

    items: tuple[Input, ...]
    many: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one input: a record for programs; rows for a person, or one line among many."""

    record: dict[str, Any]
    rows: Rows
    line: str
    exit_code: int = 0
    notes: tuple[str, ...] = field(default=())


def videos(given: Sequence[str]) -> Inputs:
    """The videos that words of a command line name."""
    from inlay.video.listing import RAW_SUFFIXES, VIDEO_SUFFIXES

    return _inputs(given, (*VIDEO_SUFFIXES, *RAW_SUFFIXES), VideoError, "videos")


def token_files(given: Sequence[str]) -> Inputs:
    """The token files that words of a command line name."""
    return _inputs(given, (TOKEN_SUFFIX,), TokenFileError, "token files")


def is_several(word: str) -> bool:
    """Whether a word names a folder or a pattern, in place of one file."""
    return _is_folder(word) or _is_pattern(word)


def _is_folder(word: str) -> bool:
    return bool(word) and not too_long(word) and Path(word).is_dir()


def _is_pattern(word: str) -> bool:
    from inlay.video.source import is_address

    return glob.has_magic(word) and not is_address(word) and not too_long(word) and not Path(word).exists()


def _inputs(given: Sequence[str], suffixes: tuple[str, ...], error: type[InlayError], what: str) -> Inputs:
    found = [item for word in given for item in _items(word, suffixes, error, what)]
    return Inputs(items=tuple(found), many=len(given) > 1 or any(is_several(word) for word in given))


def _items(word: str, suffixes: tuple[str, ...], error: type[InlayError], what: str) -> list[Input]:
    """What one word names. A file that is not there is one, too: its error comes in its turn."""
    place = Path(word)
    if _is_folder(word):
        files = sorted(p for p in place.rglob("*") if p.suffix.lower() in suffixes and p.is_file())
        if not files:
            raise error(f"{word}: this folder holds no {what}; looked for {', '.join(suffixes)}")
        return [Input(source=str(p), name=str(p.relative_to(place).with_suffix(""))) for p in files]
    if _is_pattern(word):  # it may be absolute, which Path.glob refuses
        names = [name for name in sorted(glob.glob(word, recursive=True)) if Path(name).is_file()]  # noqa: PTH207
        if not names:
            raise error(f"{word}: no file has such a name")
        return [Input(source=name, name=Path(name).stem) for name in names]
    return [Input(source=word, name=portable_name(place.stem))]  # an address may end in a port


def targets(inputs: Inputs, folder: str, suffix: str) -> dict[Input, str]:
    """Where each result goes, in a folder that is made if need be; no two at one place, and none without a name."""
    check_folder(Path(folder), about="out_dir")
    placed: dict[str, Input] = {}
    for item in inputs.items:
        if item.source == STREAM:
            raise UsageError("standard input has no name for a file in a folder; encode it by itself", about="out_dir")
        target = str(Path(folder) / (item.name + suffix))
        if target in placed:
            both = f"{placed[target].source} and {item.source}"
            raise UsageError(f"{both} would both become {target}; rename one, or encode them into two folders")
        placed[target] = item
    return {item: target for target, item in placed.items()}


def one_output(given: Sequence[str], suffixes: tuple[str, ...], *, instead: str = "") -> tuple[list[str], str | None]:
    """The input and its output among words without --out-dir: one input, perhaps followed by the name of its result.

    Args:
        suffixes: how its name may end.
        instead: what else one may do with a folder.
    """
    if is_several(given[0]):
        kind = "a folder" if _is_folder(given[0]) else "a pattern"
        raise UsageError(f"{given[0]}: is {kind}; say where the results go{instead}", about="out_dir")
    if len(given) > 2 or (len(given) == 2 and _is_another(Path(given[1]), Path(given[0]), suffixes)):
        raise UsageError(f"{' '.join(given[1:])}: several inputs need a folder for their results", about="out_dir")
    return list(given[:1]), given[1] if len(given) == 2 else None


def _is_another(path: Path, first: Path, suffixes: tuple[str, ...]) -> bool:
    """A file that cannot be meant as the output of the first one."""
    return not too_long(path) and path.is_file() and path.suffix.lower() not in suffixes and path != first


def for_each(
    inputs: Inputs, work: Callable[[Input, Screen], Result], *, context: typer.Context, screen: Screen
) -> list[Result]:
    """Do one thing after the other and show what became of each.

    A single input that fails raises. Of many, each failure is told in its place and the others go on; in the end the
    command leaves with the exit code of the first that failed.
    """
    if not inputs.many:
        (item,) = inputs.items
        result = work(item, screen)
        _remark(result, screen)
        screen.show(result.record, result.rows)
        if result.exit_code:
            raise typer.Exit(result.exit_code)
        return [result]
    width, total = max(len(item.source) for item in inputs.items), len(inputs.items)
    results: list[Result] = []
    codes: list[int] = []
    for number, item in enumerate(inputs.items, 1):
        try:
            result = work(item, replace(screen, about=f"{number} of {total}, {Path(item.source).name}: "))
        except (BrokenPipeError, typer.Exit):
            raise
        except Exception as error:
            message, code = explain(error, context.command)
            message = message if one_line(item.source) in message else one_line(f"{item.source}: {message}")
            screen.failed({"input": item.source, "error": message, "exit_code": code}, message)
            codes.append(code)
            continue
        _remark(result, screen)
        screen.line(result.record, f"{item.source:<{width}}  {result.line}")
        results.append(result)
        codes.append(result.exit_code)
    bad = [code for code in codes if code]
    screen.note(f"{len(codes) - len(bad)} of {len(codes)} done" + (f", {len(bad)} failed" if bad else ""))
    if bad:
        raise typer.Exit(bad[0])
    return results


def _remark(result: Result, screen: Screen) -> None:
    for text in result.notes:
        screen.note(text)
