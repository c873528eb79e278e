# SPDX-License-Identifier: Apache-2.0
"""The Gradio page: which control calls which action, and where its view goes. What moves without the server is in
viewer.js (the large view), charts.js (curve and strip), address.js (state in the address, copying, errors), dials.js
(numbers that are typed) and drops.js (files dropped anywhere)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr  # the server asks for it by name before it opens this file

from inlay.draw.images import data_uri, image_bytes
from inlay.web.actions import BY_KEEP, BY_TAU, PRESETS, USUAL, Actions, View
from inlay.web.clips import CLIPS, DEFAULT, thumbnails
from inlay.web.render import FILL_NAMES
from inlay.web.session import SETTINGS

TITLE = "Inlay"
LEAD = "Cells that change become tokens. Dark cells are dropped; reconstruct, and see how well they come back."
HERE = Path(__file__).parent
# Gradio's "hidden" would make a box of its own, in which nothing sticks; and its blue is not ours.
OUTSIDE = """.gradio-container { overflow: clip !important; }
:root, .dark {
  --color-accent: #0072b2 !important; --slider-color: #0072b2 !important;
  --button-primary-background-fill: #0072b2 !important; --button-primary-background-fill-hover: #005a8c !important;
}
.dark { --color-accent: #56b4e9 !important; }"""
HEAVY = {"concurrency_id": "network", "concurrency_limit": 1}  # one clip goes through the network at a time
QUICK = {"queue": False, "show_progress": "hidden", "trigger_mode": "always_last"}
PRIVATE = {"api_visibility": "private"}


def style() -> str:
    """With the pictures of the built-in clips behind their names."""
    pictures = [data_uri(image_bytes(video.frames[0], "webp"), "webp") for video in thumbnails().values()]
    rules = [f'#clip label:nth-of-type({n}) {{ background-image: url("{p}"); }}' for n, p in enumerate(pictures, 1)]
    return "\n".join([_text("page.css"), *rules])


def script() -> str:
    """For the head of the page."""
    parts = "\n".join(_text(name) for name in ("viewer.js", "charts.js", "address.js", "dials.js", "drops.js"))
    return f"<style>{OUTSIDE}</style><script>(() => {{\n{parts}\n}})();</script>"


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def build(actions: Actions) -> Any:
    """The page; `launch` is the server's business."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        parts = _lay_out(actions)
        _wire(page, parts, actions)
    return page


def _lay_out(actions: Actions) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    gr.HTML(f"<h1>{TITLE}</h1><p>{LEAD}</p>", elem_id="lead", js_on_load=None)
    with gr.Row(equal_height=False, elem_id="work"):
        with gr.Column(scale=2, min_width=300, elem_id="controls"):
            parts |= _controls(actions)
        with gr.Column(scale=5, min_width=320, elem_id="show"):
            parts["status"] = gr.HTML(elem_id="status", js_on_load=None)
            gr.HTML(_text("viewer.html"), elem_id="viewer", js_on_load=None)
            parts["data"] = gr.HTML(elem_id="data", js_on_load=None)
            parts["table"] = gr.HTML(elem_id="table", js_on_load=None)
            with gr.Row():
                parts["token_file"] = gr.DownloadButton("Download token file", interactive=False, elem_id="token-file")
                parts["film"] = gr.DownloadButton("Download film", interactive=False, elem_id="film")
            with gr.Accordion("The same as a command and in Python", open=True, elem_id="code-box"):
                parts["code"] = gr.HTML(elem_id="code", js_on_load=None)
            with gr.Accordion("Latents of one slot", open=False, elem_id="latents-box"):
                parts["see"] = gr.Button("Show the latents of this frame's slot", size="sm", elem_id="see")
                parts["latents"] = gr.HTML(elem_id="latents", js_on_load=None)
    parts |= {name: gr.Number(0, visible=False) for name in ("frame", "asked_tau", "asked_keep")}
    parts["state"] = gr.Textbox("", visible=False)
    parts["again"] = gr.Button(visible="hidden", elem_id="again")  # pressed by address.js
    return parts


def _controls(actions: Actions) -> dict[str, Any]:
    fills = [(FILL_NAMES[name], name) for name in actions.fills]
    default = actions.tokenizer.filler.default
    waiting: dict[str, Any] = {"interactive": False, "buttons": []}  # until there is a clip
    parts: dict[str, Any] = {}
    with gr.Tabs():
        with gr.Tab("Clip"):
            parts["clip"] = gr.Radio(list(CLIPS), value=DEFAULT, show_label=False, container=False, elem_id="clip")
            most = f"{actions.limits.max_mb:g} MB, {actions.limits.max_seconds:g} s at most"
            parts["video"] = gr.File(
                label=f"or drop in a video ({most})", height=76, elem_id="video"
            )  # any: see drops.js
        with gr.Tab("Token file"):
            parts["tokens"] = gr.File(label="Drop in a token file (.inlay)", height=76, elem_id="tokens")
    with gr.Group(elem_id="setting"):
        parts["which"] = gr.Radio(list(SETTINGS), value="A", label="Setting (B to compare)", elem_id="which")
        parts["preset"] = gr.Radio(list(PRESETS), value=USUAL, label="Presets", elem_id="preset")
        parts["mode"] = gr.Radio([BY_TAU, BY_KEEP], value=BY_TAU, label="Choose by", elem_id="mode")
        parts["tau"] = gr.Slider(0, 1, value=0.3, step=0.001, label="tau", elem_id="tau", **waiting)
        parts["keep"] = gr.Slider(
            0, 100, value=25, step=0.1, label="keep rate (%)", elem_id="keep", visible=False, **waiting
        )
        steps = actions.steps
        parts["step"] = gr.Radio(
            steps, value=steps[0], label="Round kept cells by (step)", elem_id="step", visible=len(steps) > 1
        )
        parts["fill"] = gr.Radio(fills, value=default, label="Fill with", elem_id="fill")
    parts["go"] = gr.Button("Reconstruct", variant="primary", interactive=False, elem_id="go")
    return parts


CONTROLS = ("which", "preset", "mode", "tau", "keep", "step", "fill", "clip", "go")
SHOWN = ("status", "data", "table", "code", *CONTROLS, "token_file", "film", "latents")
GIVEN = ("video", "tokens")  # boxes for files


def _wire(page: Any, p: dict[str, Any], actions: Actions) -> None:
    everything = [p[name] for name in SHOWN]  # the functions below take whatever a hostile visitor puts in an event

    def ticker(progress: Any) -> Any:
        return lambda share, what: progress(min(share, 1.0), desc=what)

    def opened(state: str, request: gr.Request, progress: Any = gr.Progress()) -> list[Any]:  # noqa: B008
        view = actions.open(request.session_hash, state, ticker(progress))
        return [*_answer(view), *(_emptied(view) if view.clip is not None else [gr.skip() for _ in GIVEN])]

    def loader(load: Callable[..., View], box: str = "") -> Callable[..., list[Any]]:
        def run(given: str, fill: str, request: gr.Request, progress: Any = gr.Progress()) -> list[Any]:  # noqa: B008
            more = (str(fill),) if load == actions.upload_tokens else ()
            view = load(request.session_hash, str(given), *more, ticker(progress))
            return [*_answer(view), *_emptied(view, box)]

        return run

    def reconstruct(which: str, fill: str, request: gr.Request, progress: Any = gr.Progress()) -> list[Any]:  # noqa: B008
        return _answer(actions.reconstruct(request.session_hash, str(which), str(fill), ticker(progress)))

    def choose(which: str, mode: str, tau: float | None, keep: float | None, request: gr.Request) -> list[Any]:
        return _answer(actions.choose(request.session_hash, str(which), mode, tau, keep))

    def preset(which: str, name: str, request: gr.Request) -> list[Any]:
        return _answer(actions.preset(request.session_hash, str(which), str(name)))

    def switch(which: str, request: gr.Request) -> list[Any]:
        return _answer(actions.switch(request.session_hash, str(which)))

    def refill(which: str, fill: str, request: gr.Request) -> list[Any]:
        return _answer(actions.refill(request.session_hash, str(which), str(fill)))

    def restep(which: str, step: str, request: gr.Request) -> list[Any]:
        return _answer(actions.restep(request.session_hash, str(which), str(step)))

    def by(mode: str) -> list[Any]:
        return [gr.update(visible=mode == BY_TAU), gr.update(visible=mode == BY_KEEP)]

    def latents(frame: float, request: gr.Request) -> str:
        return actions.latents(request.session_hash, frame if isinstance(frame, int | float) else 0)

    def leave(request: gr.Request) -> None:
        actions.sessions.leave(request.session_hash)

    heavy = HEAVY | PRIVATE | {"show_progress_on": [p["status"]]}
    quick = QUICK | PRIVATE
    state = {"js": "() => [window.location.hash]"} | heavy
    with_boxes = [*everything, *(p[name] for name in GIVEN)]
    page.load(opened, [p["state"]], with_boxes, **state)
    p["again"].click(opened, [p["state"]], with_boxes, trigger_mode="always_last", **state)
    p["clip"].input(loader(actions.pick), [p["clip"], p["fill"]], with_boxes, **heavy)
    loads: dict[str, Callable[..., View]] = {"video": actions.upload, "tokens": actions.upload_tokens}
    for name, load in loads.items():
        p[name].upload(loader(load, name), [p[name], p["fill"]], with_boxes, **heavy)
    p["go"].click(reconstruct, [p["which"], p["fill"]], everything, **heavy)
    masks = [p[name] for name in ("which", "mode", "asked_tau", "asked_keep")]  # a slider is refused beyond its ends
    asked = "(which, mode) => [which, mode, window.inlay.asked('tau'), window.inlay.asked('keep')]"
    for control in (p["tau"], p["keep"]):
        control.input(choose, masks, everything, js=asked, **quick)
    p["preset"].input(preset, [p["which"], p["preset"]], everything, **quick)
    p["which"].input(switch, [p["which"]], everything, **quick)
    p["fill"].input(refill, [p["which"], p["fill"]], everything, **quick)
    p["step"].input(restep, [p["which"], p["step"]], everything, **quick)
    p["mode"].input(by, [p["mode"]], [p["tau"], p["keep"]], **quick)
    p["see"].click(latents, [p["frame"]], [p["latents"]], js="() => [window.inlay.frame]", **quick)
    page.unload(leave)


def _answer(view: View) -> list[Any]:
    updates = {
        "status": view.status,
        "data": view.data,
        "table": view.table,
        "code": view.code,
        **_followed(view),
        "preset": gr.update(value=view.preset),
        "clip": gr.update(value=view.clip),
        "go": gr.update(interactive=view.can_decode),
        "token_file": _download(view.token_file),
        "film": _download(view.film),
        "latents": "" if view.fresh else gr.skip(),
    }
    return [updates[name] for name in SHOWN]


def _emptied(view: View, box: str = "") -> list[Any]:
    """The boxes for files: empty, but for that of the clip that has come in; after a refusal the refused one alone."""
    return [None if (name == box) != view.fresh else gr.skip() for name in GIVEN]


def _followed(view: View) -> dict[str, Any]:
    """The controls where they must stand, or as they are: a slider that moves is not pushed about."""
    c = view.controls
    if c is None:
        free = gr.update(interactive=view.can_choose)
        return {"which": gr.skip(), "mode": gr.skip(), "tau": free, "keep": free, "step": free, "fill": gr.skip()}
    most = c.most_tau or 1.0
    step = 10.0 ** (math.floor(math.log10(most)) - 3)
    least = math.ceil(10 * c.least_keep) / 10
    able, by_tau = view.can_choose, c.mode == BY_TAU
    tau: dict[str, Any] = {"maximum": round(most, 4), "step": step, "value": c.tau}
    keep: dict[str, Any] = {"minimum": least, "value": round(c.keep, 1)}
    if view.moved is not None:  # the other dial goes along, out of sight
        other = {"keep": gr.update(**keep)} if view.moved == BY_TAU else {"tau": gr.update(**tau)}
        return dict.fromkeys(("which", "mode", "tau", "keep", "step", "fill"), gr.skip()) | other
    return {
        "which": gr.update(value=c.which),
        "mode": gr.update(value=c.mode),
        "tau": gr.update(**tau, visible=by_tau, interactive=able),
        "keep": gr.update(**keep, visible=not by_tau, interactive=able),
        "step": gr.update(value=c.step, interactive=able),
        "fill": gr.update(value=c.fill),
    }


def _download(path: Path | None) -> Any:
    return gr.update(value=None if path is None else str(path), interactive=path is not None)
