# SPDX-License-Identifier: Apache-2.0
"""Bring files of the repository that the docs link to beyond their own folder into the site, and examples in
docstrings as code.

mkdocs calls the functions `on_...` while it builds the site, mkdocstrings the extension (see mkdocs.yml).
"""

from __future__ import annotations

import ast
import json
import logging
import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent.resolve()
ROOT = DOCS.parent
PAGES = {  # page of the site -> the file it is made from
    "format.md": "src/inlay/container/FORMAT.md",
    "model-card.md": "src/inlay/weights/MODEL_CARD.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
}
NOTEBOOKS = {"tour.md": "examples/tour.ipynb"}  # likewise; the notebook itself can be had there too
SOURCES = PAGES | NOTEBOOKS
STANDS_FOR = {"README.md": "index.md", **{source: page for page, source in SOURCES.items()}}
LATER = (  # in a search, after the pages that explain: those full of numbers, then those full of names
    dict.fromkeys(("results.md", "log.md", "changelog.md", "speed.md"), 0.2)
    | dict.fromkeys(("reference.md", "reference-packages.md", "reference-more.md"), 0.4)
)
OPTIONAL = {"serve.md", "scale.md", "pack.md", "reading.md", "speed.md"}  # pages that a copy of the project may lack
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(?=[)\s])")
CODE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
GAP = r"( {2,}|<span class=\"w\"> {2,}</span>)"
REMARK = re.compile(rf"(?:(?<=[^\s>])|(?<=</span>)){GAP}(#[^\n<]*|<span class=\"c1\">[^<]*</span>)")  # behind code
SHIM = re.compile(r"src=\"?https:[^\"> ]*iframe-worker[^\"> ]*\"?")
log = logging.getLogger("mkdocs.hooks.inlay")


def on_config(config: Any) -> Any:
    """Leave optional pages that are not there out of the menu."""

    def present(entries: list[Any]) -> list[Any]:
        kept = []
        for entry in entries:
            ((title, target),) = entry.items() if isinstance(entry, dict) else (("", entry),)
            if isinstance(target, list):
                kept.append({title: present(target)})
            elif target not in OPTIONAL or (DOCS / target).is_file():
                kept.append(entry)
        return kept

    config["nav"] = present(config["nav"])
    return config


def on_files(files: Files, config: Any) -> Files:
    """Pages made from files elsewhere in the repository, and whatever pages link to there."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, source in NOTEBOOKS.items():
        files.append(File.generated(config, page, content=_notebook(source)))
        files.append(File.generated(config, f"files/{source}", abs_src_path=str(ROOT / source)))
    linked: set[Path] = set()
    for file in files.documentation_pages():
        home = _home(file.src_uri)
        targets = [target for _, target, _ in LINK.findall(file.content_string)]
        linked |= {place for target in targets if (place := _outside(home, target)) is not None}
    for place in sorted(linked):
        files.append(File.generated(config, f"files/{place.as_posix()}", abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as they are right in the repository become those of the site."""
    if page.file.src_uri in LATER:
        page.meta["search"] = {"boost": LATER[page.file.src_uri]}
    home = _home(page.file.src_uri)

    def turned(match: re.Match[str]) -> str:
        head, target, anchor = match[1], match[2], match[3] or ""
        if ":" in target or (home == DOCS and not target.startswith("../")):
            return match[0]
        place = (home / target).resolve()
        if not place.is_relative_to(ROOT) or not place.is_file():
            log.warning("%s links to %s, which is not there", page.file.src_uri, target)
            return match[0]
        inside = place.relative_to(ROOT).as_posix()
        if STANDS_FOR.get(inside, page.file.src_uri) != page.file.src_uri:
            return f"{head}{STANDS_FOR[inside]}{anchor}"
        if place.is_relative_to(DOCS):
            return f"{head}{place.relative_to(DOCS).as_posix()}{anchor}"
        return f"{head}files/{inside}{anchor}"

    return LINK.sub(turned, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Remarks behind code are marked: a narrow screen puts them on a line of their own (style.css)."""
    marked = r'<span class="gap">\1</span><span class="remark">\2</span>'
    return CODE.sub(lambda block: REMARK.sub(marked, block[0]), html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme would fetch a stand-in for workers, and facts on the repository, from the net: one lies beside the
    pages, the others are left out."""
    return SHIM.sub('src="worker.js"', output).replace(' data-md-component="source"', "")


def on_post_template(output: str, template_name: str, config: Any) -> str:
    return on_post_page(output, None, config)


class Examples(Extension):
    """Python that stands in a docstring as a paragraph of its own would run together as prose."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with its examples between fences."""
    paragraphs = re.split(r"\n{2,}", text)
    return "\n\n".join(f"```python\n{p}\n```" if _is_code(p) else p for p in paragraphs)


def _is_code(paragraph: str) -> bool:
    if paragraph.startswith(">>>"):
        return True
    try:
        statements = ast.parse(paragraph).body
    except SyntaxError:
        return False
    return any(not isinstance(s, ast.Expr | ast.AnnAssign) for s in statements)


def _home(page: str) -> Path:
    """The folder that the links of a page start from."""
    return (ROOT / SOURCES[page]).parent if page in SOURCES else DOCS


def _notebook(source: str) -> str:
    """The cells of a notebook as a page; what they print is not stored."""
    cells = json.loads((ROOT / source).read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    head, _, rest = "\n\n".join(parts).partition("\n")
    name = Path(source).name
    return f"{head}\n\nThis page is a notebook: run [{name}]({name}) to see the pictures.\n{rest}\n"


def _outside(home: Path, target: str) -> Path | None:
    """The place below the repository of a linked file that is neither in docs nor a page of its own."""
    if ":" in target:
        return None
    place = (home / target).resolve()
    if not place.is_file() or not place.is_relative_to(ROOT) or place.is_relative_to(DOCS):
        return None
    inside = place.relative_to(ROOT)
    return None if inside.as_posix() in STANDS_FOR else inside
