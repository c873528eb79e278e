# SPDX-License-Identifier: Apache-2.0
"""The Gradio page: which control calls which action, and where its view goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr  # the server asks for it by name before it opens this file

from inlay.web.actions import BY_KEEP, BY_TAU, Actions, View
from inlay.web.clips import CLIPS
from inlay.web.render import EMPTY, FILL_NAMES

TITLE = "Inlay"
LEAD = (
    "Video tokens for what changes. Move the slider: cells that change by less are dropped (dark). "
    "Then reconstruct, and see how well the dropped ones come back."
)
STYLE = Path(__file__).with_name("page.css")
HEAVY = {"concurrency_id": "network", "concurrency_limit": 1}  # one clip goes through the network at a time
QUICK = {"queue": False, "show_progress": "hidden", "trigger_mode": "always_last"}
PRIVATE = {"api_visibility": "private"}


def build(actions: Actions) -> Any:
    """The page; `launch` is the server's business."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        parts = _lay_out(actions)
        _wire(page, parts, actions)
    return page


def _lay_out(actions: Actions) -> dict[str, Any]:
    fills = [(FILL_NAMES[name], name) for name in actions.fills]
    default = actions.tokenizer.filler.default
    waiting: dict[str, Any] = {"interactive": False, "buttons": []}  # until there is a clip
    parts: dict[str, Any] = {}
    gr.HTML(f"<h1>{TITLE}</h1><p>{LEAD}</p>", elem_id="lead", padding=False)
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            with gr.Tabs():
                with gr.Tab("Video"):
                    kinds = ["video", ".mkv", ".avi", ".mov", ".webm", ".y4m"]
                    parts["video"] = gr.File(label="Drop in a video", file_types=kinds, height=120, elem_id="video")
                    parts["clip"] = gr.Radio(list(CLIPS), label="or pick a built-in clip", elem_id="clip")
                with gr.Tab("Token file"):
                    parts["tokens"] = gr.File(
                        label="Drop in a token file (.inlay)", file_types=[".inlay"], height=120, elem_id="tokens"
                    )
            parts["mode"] = gr.Radio([BY_TAU, BY_KEEP], value=BY_TAU, label="Choose cells by", elem_id="mode")
            parts["tau"] = gr.Slider(0, 1, value=0.3, step=0.001, label="tau", elem_id="tau", **waiting)
            parts["keep"] = gr.Slider(
                0, 100, value=25, step=0.1, label="keep rate (%)", elem_id="keep", visible=False, **waiting
            )
            parts["fill"] = gr.Radio(fills, value=default, label="Fill dropped cells with", elem_id="fill")
            parts["go"] = gr.Button("Reconstruct", variant="primary", interactive=False, elem_id="go")
        with gr.Column(scale=5, min_width=320):
            parts["status"] = gr.HTML(elem_id="status", padding=False)
            parts["panels"] = gr.HTML(EMPTY, elem_id="panels", padding=False)
            parts["frame"] = gr.Slider(0, 1, value=0, step=1, label="frame", elem_id="frame", visible=False, buttons=[])
            parts["curve"] = gr.HTML(elem_id="curve", padding=False)
            parts["strip"] = gr.HTML(elem_id="strip", padding=False)
            parts["table"] = gr.HTML(elem_id="table", padding=False)
            with gr.Row():
                parts["token_file"] = gr.DownloadButton("Download token file", interactive=False, elem_id="token-file")
                parts["film"] = gr.DownloadButton("Download film", interactive=False, elem_id="film")
    return parts


SHOWN = ("status", "panels", "strip", "curve", "table", "frame", "tau", "keep", "go", "token_file", "film")
LOOKED = ("status", "panels", "curve", "frame", "film")


def _wire(page: Any, p: dict[str, Any], actions: Actions) -> None:
    everything = [p[name] for name in SHOWN]

    def ticker(progress: Any) -> Any:
        return lambda share, what: progress(min(share, 1.0), desc=what)

    def loader(load: Callable[..., View]) -> Callable[..., list[Any]]:
        def run(given: str, fill: str, request: gr.Request, progress: Any = gr.Progress()) -> list[Any]:  # noqa: B008
            return [*_answer(load(request.session_hash, given, fill, ticker(progress))), None, None]

        return run

    def reconstruct(frame: int, fill: str, request: gr.Request, progress: Any = gr.Progress()) -> list[Any]:  # noqa: B008
        return _answer(actions.reconstruct(request.session_hash, frame, fill, ticker(progress)))

    def choose(mode: str, tau: float, keep: float, frame: int, fill: str, request: gr.Request) -> list[Any]:
        return _answer(actions.choose(request.session_hash, mode, tau, keep, frame, fill))

    def switch(mode: str) -> list[Any]:
        return [gr.update(visible=mode == BY_TAU), gr.update(visible=mode == BY_KEEP)]

    def look(frame: int, fill: str, request: gr.Request) -> list[Any]:
        return _answer(actions.look(request.session_hash, frame, fill), LOOKED)

    def leave(request: gr.Request) -> None:
        actions.sessions.leave(request.session_hash)

    heavy = HEAVY | PRIVATE | {"show_progress_on": [p["panels"]]}
    sources = {
        "clip": (p["clip"].input, actions.pick),
        "video": (p["video"].upload, actions.upload),
        "tokens": (p["tokens"].upload, actions.upload_tokens),
    }
    for name, (event, load) in sources.items():  # a new source clears the other two
        others = [p[other] for other in sources if other != name]
        event(loader(load), [p[name], p["fill"]], everything + others, **heavy)
    p["go"].click(reconstruct, [p["frame"], p["fill"]], everything, **heavy)
    masks = [p[name] for name in ("mode", "tau", "keep", "frame", "fill")]
    for control in (p["tau"], p["keep"]):
        control.input(choose, masks, everything, **QUICK, **PRIVATE)
    p["mode"].input(switch, [p["mode"]], [p["tau"], p["keep"]], **QUICK, **PRIVATE)
    for control in (p["frame"], p["fill"]):
        control.input(look, [p["frame"], p["fill"]], [p[name] for name in LOOKED], **QUICK, **PRIVATE)
    page.load(look, [p["frame"], p["fill"]], [p[name] for name in LOOKED], **QUICK, **PRIVATE)
    page.unload(leave)


def _answer(view: View, names: tuple[str, ...] = SHOWN) -> list[Any]:
    follow = view.tau is not None and view.most_tau is not None
    most = max(view.most_tau or 0.0, view.tau or 0.0)
    least = math.ceil(10 * (view.least_keep or 0.0)) / 10
    still = gr.update(interactive=view.can_choose)
    step = 10.0 ** (math.floor(math.log10(most)) - 3) if most > 0 else 0.001
    updates = {
        "status": view.status,
        "panels": view.panels,
        "strip": view.strip,
        "curve": view.curve,
        "table": view.table,
        "frame": gr.update(
            maximum=max(view.frames - 1, 1), value=view.frame, visible=view.frames > 1, interactive=True
        ),
        "tau": gr.update(maximum=round(most, 4), step=step, value=view.tau, interactive=True) if follow else still,
        "keep": gr.update(minimum=least, value=round(view.keep or 0.0, 1), interactive=True) if follow else still,
        "go": gr.update(interactive=view.can_decode),
        "token_file": _download(view.token_file),
        "film": _download(view.film),
    }
    return [updates[name] for name in names]


def _download(path: Path | None) -> Any:
    return gr.update(value=None if path is None else str(path), interactive=path is not None)
