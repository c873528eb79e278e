# SPDX-License-Identifier: Apache-2.0
"""What to type for the tokens that are shown: commands, and lines of Python."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from inlay.web.clips import CODE
from inlay.web.session import Choice, Session, Setting

STANDARD = "mini"  # the backbone that needs no flag


@dataclass(frozen=True, kw_only=True)
class Snippets:
    command: str
    python: str


def snippets(session: Session, setting: Setting) -> Snippets:
    """Both give the very bytes that the page's download has."""
    choice, fill = setting.choice, setting.fill
    backbone = choice.chunks[0].recipe.backbone
    model = "" if backbone == STANDARD else f" --backbone {shlex.quote(backbone)}"
    name = f'"{backbone}"' if backbone != STANDARD else ""
    load = f"tokenizer = inlay.Tokenizer.from_pretrained({name})"
    if session.original is None:
        return _of_tokens(session.name, fill, load)
    flags, words = _budget(choice)
    if setting.step is not None:
        flags, words = f"{flags} --step {shlex.quote(setting.step)}", f'{words}, step="{setting.step}"'
    made = CODE.get(session.name)
    source = session.name if made is None else f"{session.stem}.mkv"
    if session.reduced_to is not None:
        flags, words = f"{flags} --size {session.reduced_to}", f'{words}, size="{session.reduced_to}"'
    file, tokens = shlex.quote(source), shlex.quote(f"{Path(source).stem}.inlay")
    commands = [f"inlay encode {file} {flags}{model}", f"inlay decode {tokens} --fill {fill}"]
    given = repr(source)
    lines = ["import inlay", load]
    if made is not None:
        save = f"from inlay.video import synthetic; {made}.save('{source}', lossless=True)"
        commands.insert(0, f'python -c "{save}"')
        lines[0], given = "import inlay\nfrom inlay.video import synthetic", made
    lines += [f"tokens = tokenizer.encode({given}, {words})", f'video = tokenizer.decode(tokens, fill="{fill}")']
    return Snippets(command="\n".join(commands), python="\n".join(lines))


def _budget(choice: Choice) -> tuple[str, str]:
    if choice.keep is None:
        return f"--tau {choice.tau!r}", f"tau={choice.tau!r}"
    return f"--keep {choice.keep!r} --exact", f"keep={choice.keep!r}, exact=True"


def _of_tokens(name: str, fill: str, load: str) -> Snippets:
    decode = f'video = tokenizer.decode(inlay.open({name!r}), fill="{fill}")'
    return Snippets(
        command=f"inlay decode {shlex.quote(name)} --fill {fill}", python="\n".join(["import inlay", load, decode])
    )
