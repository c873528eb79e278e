# SPDX-License-Identifier: Apache-2.0
"""What the page shows after each thing a visitor does: plain functions, with no knowledge of Gradio."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from urllib.parse import parse_qs

from inlay.errors import InlayError, UsageError, number_of, pick
from inlay.masking.steps import LADDER, OWN
from inlay.tokenizer import Tokenizer
from inlay.web import render
from inlay.web.clips import CLIPS, DEFAULT, EncodedClips
from inlay.web.limits import Limits
from inlay.web.session import SETTINGS, Advance, Choice, Session
from inlay.web.sessions import Sessions

BY_TAU, BY_KEEP = "threshold (tau)", "keep rate"
USUAL, TENTH, PAPER, ALL = "usual tau", "10 % of the tokens", "what the paper keeps", "every cell"
PRESETS: dict[str, float | None] = {USUAL: None, TENTH: 0.10, PAPER: 0.62, ALL: 1.0}  # keep rates; the paper's of DAVIS
MODELS_OWN = "model's own"  # step
LONGEST_STATE = 2000  # characters of an address
ENDED = "This visit has ended, to make room for others; load the page again."
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Controls:
    """Where the controls must stand."""

    which: str
    mode: str
    tau: float
    most_tau: float
    keep: float  # percent
    least_keep: float
    step: str
    fill: str


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything on the page that depends on the session."""

    status: str
    data: str
    table: str
    code: str
    controls: Controls | None = None  # set where they must follow
    moved: str | None = None  # the mode whose dial is under the visitor's hand: that one is not pushed about
    fresh: bool = False  # another clip has come in
    clip: str | None = None  # the built-in clip that is shown
    preset: str | None = None  # that would give the same mask
    can_choose: bool = False  # there are latents, so the mask can change
    can_decode: bool = False
    token_file: Path | None = None
    film: Path | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Actions:
    """One for the whole server: the model, the limits and the sessions."""

    tokenizer: Tokenizer
    sessions: Sessions
    clips: EncodedClips
    limits: Limits
    uploads: Path = field(default_factory=Path)  # where the files of visitors lie; others are not opened

    @property
    def fills(self) -> list[str]:
        """Those to choose between: the best LIT at hand, and the two without weights."""
        filler = self.tokenizer.filler
        best = next((name for name in ("lit", "lit-paper") if name in filler.lits), "hold")
        return [name for name in render.FILL_NAMES if name in {filler.default, "hold", "linear", best}]

    @property
    def steps(self) -> list[str]:
        """Those to choose between; a model whose gains nobody measured has its own and no other."""
        profile = self.tokenizer.profile
        return [MODELS_OWN, *LADDER, OWN] if profile is not None and profile.gains else [MODELS_OWN]

    # --- a clip comes in ---------------------------------------------------------------------------------------------

    def open(self, visitor: str | None, state: str, advance: Advance) -> View:
        """The page is opened, with what stands in its address after the #."""
        wanted = {name: values[0] for name, values in parse_qs(str(state)[:LONGEST_STATE].lstrip("#")).items()}
        which = wanted.get("on", "A") if wanted.get("on") in SETTINGS else "A"

        def work(session: Session) -> str:
            name = wanted.get("clip", DEFAULT)
            here = name in CLIPS or (name == session.name and bool(session.settings))
            if here and name not in CLIPS:
                session.begin_anew()
            else:
                self._pick(session, name if here else DEFAULT, advance)
            for setting in SETTINGS:
                if setting in wanted and session.latents is not None:
                    self._restore(session, setting, wanted[setting])
            session.setting(which)
            gone = "" if here else f"{name} was uploaded, and is no longer here. "
            return gone + _told(session, which)

        return self._try(visitor, work, which, follow=True)

    def pick(self, visitor: str | None, name: str, advance: Advance) -> View:
        def work(session: Session) -> str:
            self._pick(session, name, advance)
            return _told(session, "A")

        return self._try(visitor, work, "A", follow=True)

    def upload(self, visitor: str | None, path: str | None, advance: Advance) -> View:
        def work(session: Session) -> str:
            session.load_file(self.tokenizer, self._own(session, path), self.limits, self._in_time(session, advance))
            return _told(session, "A")

        return self._try(visitor, work, "A", follow=True)

    def upload_tokens(self, visitor: str | None, path: str | None, fill: str, advance: Advance) -> View:
        def work(session: Session) -> str:
            session.load_tokens(self.tokenizer, self._own(session, path), self.limits)
            self._decode(session, "A", fill, self._in_time(session, advance))
            return f"Decoded {session.name}. There is no original to compare with."

        return self._try(visitor, work, "A", follow=True)

    # --- masks -------------------------------------------------------------------------------------------------------

    def choose(self, visitor: str | None, which: str, mode: str, tau: float | None, keep: float | None) -> View:
        """A slider moved, or a number is being typed: only the mask is computed."""

        def work(session: Session) -> str:
            start = time.perf_counter()
            number = tau if mode == BY_TAU else keep
            if number is None:
                return f"Give a number for the {mode}; until then the mask stays as it is."
            if mode == BY_TAU:
                choice = session.choose_tau(float(f"{float(number):.6g}"), which)
            else:
                choice = session.choose_keep(float(f"{float(number) / 100:.6g}"), which)
            return _kept(choice, 1000 * (time.perf_counter() - start))

        return self._try(visitor, work, which, follow=True, moved=mode)

    def preset(self, visitor: str | None, which: str, name: str) -> View:
        def work(session: Session) -> str:
            keep = pick("preset", name, PRESETS)
            start = time.perf_counter()
            if keep is None:
                choice = session.choose_tau(session.usual_tau, which)
            elif keep == 1:
                choice = session.choose_tau(0.0, which)
            else:
                least = session.least_keep
                choice = session.choose_keep(max(keep, float(f"{least + 5e-5:.4f}")), which)
            few = f"The first slot of each key chunk needs more cells, so that {keep or 0:.0%} cannot be had. "
            short = keep is not None and choice.curve.keep_rate > keep + 1e-3
            return (few if short else "") + _kept(choice, 1000 * (time.perf_counter() - start))

        return self._try(visitor, work, which, follow=True)

    def switch(self, visitor: str | None, which: str) -> View:
        """The controls are those of the other setting now."""

        def work(session: Session) -> str:
            choice = session.setting(which).choice
            return f"Setting {which}: {choice.curve.keep_rate:.1%} kept at tau {choice.tau:.4g}."

        return self._try(visitor, work, which, follow=True)

    def refill(self, visitor: str | None, which: str, fill: str) -> View:
        """Another fill, which may have been reconstructed before."""

        def work(session: Session) -> str:
            setting = session.setting(which)
            name = pick("fill", fill, {key: render.FILL_NAMES[key] for key in self.fills})
            setting.fill = fill
            return (
                f"Showing the reconstruction with {name}." if setting.result else f"Not reconstructed with {name} yet."
            )

        return self._try(visitor, work, which)

    def restep(self, visitor: str | None, which: str, step: str) -> View:
        """The same cells, rounded more finely or more coarsely."""

        def work(session: Session) -> str:
            name = pick("step", step, {key: key for key in self.steps})
            session.choose_step(None if name == MODELS_OWN else name, which)
            return f"Setting {which}: step {name}. Reconstruct, and see what it costs and saves."

        return self._try(visitor, work, which)

    # --- pictures ----------------------------------------------------------------------------------------------------

    def reconstruct(self, visitor: str | None, which: str, fill: str, advance: Advance) -> View:
        def work(session: Session) -> str:
            if not self._decode(session, which, fill, self._in_time(session, advance)):
                return "The mask has changed meanwhile; reconstruct once more."
            return (
                f"Reconstructed {which} with {render.FILL_NAMES[fill]}. Choose another fill and reconstruct to compare."
            )

        return self._try(visitor, work, which)

    def latents(self, visitor: str | None, frame: float) -> str:
        """The latents of the slot that a frame belongs to, as pictures."""
        session = self.sessions.of(visitor)

        def work() -> str:
            slots = session.setting("A").choice.slot_T
            last = len(slots) - 1
            return render.latents(session, int(slots[int(min(max(frame, 0), last)) if frame == frame else 0]))  # nan

        return self._guarded(session, work)

    # --- how ---------------------------------------------------------------------------------------------------------

    def _pick(self, session: Session, name: str, advance: Advance) -> None:
        clip = self.clips.get(self.tokenizer, pick("built-in clip", name, {n: n for n in CLIPS}), advance)
        session.load_built_in(name, clip)

    def _restore(self, session: Session, which: str, text: str) -> None:
        """A setting from an address: `tau:0.3:lit`, or `keep:0.1:hold:coarse`."""
        kind, value, fill, step, *_ = [*text.split(":"), "", "", ""]
        try:
            number = float(value)
        except ValueError:
            raise UsageError(f"the address says {text!r} of setting {which}, which is none; begin anew") from None
        if kind == "keep":
            session.choose_keep(number, which)
        else:
            session.choose_tau(number, which)
        if fill in self.fills:
            session.setting(which).fill = fill
        if not step or step in self.steps[1:]:  # none is the model's own, also where B began with that of A
            session.choose_step(step or None, which)

    def _decode(self, session: Session, which: str, fill: str, advance: Advance) -> bool:
        """False: what was decoded is no longer what is shown."""
        original = session.original
        result, video = session.reconstruct(self.tokenizer, fill, advance, which)
        advance(0.95, "Writing the film")
        render.write_film(result, video, original, session.film_place(which, fill), title=session.name)
        return session.setting(which).result is result

    def _in_time(self, session: Session, advance: Advance) -> Advance:
        """The same, which ends what takes longer than one visitor may make the others wait, or what nobody awaits."""
        end = time.monotonic() + self.limits.max_work

        def within(share: float, what: str) -> None:
            if session.closed:
                raise UsageError(ENDED)
            if time.monotonic() > end:
                raise UsageError(
                    f"this took longer than {self.limits.max_work:g} s, the most that this page spends on a request; "
                    "give a shorter or smaller video, or use the command line, which has no such limit"
                )
            advance(share, what)

        return within

    def _own(self, session: Session, path: str | None) -> Path:
        """The upload itself, and never another file by its name; it goes with the session."""
        if not path:
            raise UsageError("there is no file; choose one, or drop it in")
        place = Path(path).resolve()
        if not place.is_relative_to(self.uploads.resolve()) or not place.is_file():
            raise UsageError("that file was not uploaded to this page; choose one, or drop it in")
        self.sessions.take(session, place)
        return place

    def _try(
        self, visitor: str | None, work: Callable[[Session], str], which: str, *, follow: bool = False,
        moved: str | None = None,
    ) -> View:  # fmt: skip
        """Errors stay with the visitor who made them, as a line on the page; what was there before stays there."""
        session = self.sessions.of(visitor)
        before = session.version
        status = self._guarded(session, lambda: f'<p class="inlay-status" role="status">{escape(work(session))}</p>')
        if session.closed:
            session.close()
        view = self._view(session, status, which, follow=follow)
        return replace(view, moved=moved, fresh=session.version != before)

    def _guarded(self, session: Session, work: Callable[[], str]) -> str:
        try:
            return work()
        except InlayError as error:
            return _error(str(error))
        except Exception:  # a defect of ours must not end the page, nor tell a stranger where our files lie
            if session.closed:  # its files were taken away while they were in use
                return _error(ENDED)
            log.exception("a request failed")
            return _error("Something went wrong here; please try again.")

    def _view(self, session: Session, status: str, which: str, *, follow: bool) -> View:
        with session.lock:
            which = which if which in session.settings else "A"
            setting = session.settings.get(which)
            film = session.film_place(which, setting.fill) if setting is not None and setting.result else None
            return View(
                status=status,
                data=render.viewer(session, which, self.uploads),
                table=render.table(session),
                code=render.code(session, which),
                controls=_controls(session, which) if follow else None,
                clip=session.name if session.name in CLIPS else None,
                preset=_preset(session, setting.choice) if setting is not None else None,
                can_choose=session.latents is not None,
                can_decode=setting is not None,
                token_file=setting.token_file if setting is not None and setting.results else None,
                film=film if film is not None and film.is_file() else None,
            )


def _error(text: str) -> str:
    return f'<p class="inlay-status inlay-error" role="alert">{escape(text)}</p>'


def _controls(session: Session, which: str) -> Controls | None:
    setting = session.settings.get(which)
    if setting is None:
        return None
    choice, usual = setting.choice, session.latents.start if session.latents is not None else setting.choice.tau
    return Controls(
        which=which,
        mode=BY_TAU if choice.keep is None else BY_KEEP,
        tau=choice.tau if choice.keep is None else float(f"{choice.tau:.4g}"),
        most_tau=max(4 * usual, choice.tau),
        keep=100 * choice.curve.keep_rate,
        least_keep=100 * session.least_keep,
        step=setting.step or MODELS_OWN,
        fill=setting.fill,
    )


def _preset(session: Session, choice: Choice) -> str | None:
    if session.latents is None:
        return None
    if choice.keep is None:
        return {0.0: ALL, session.usual_tau: USUAL}.get(choice.tau)
    return next((name for name, keep in PRESETS.items() if keep == choice.keep), None)


def _told(session: Session, which: str) -> str:
    choice = session.setting(which).choice
    info = choice.chunks[0].info
    kept = f"{choice.curve.keep_rate:.1%} of its cells are kept at tau {choice.tau:.4g}"
    setting = f" in setting {which}" if len(session.settings) > 1 else ""
    return f"{session.name}: {number_of(choice.frames, 'frame')} {info.width}x{info.height}; {kept}{setting}."


def _kept(choice: Choice, milliseconds: float) -> str:
    kept = f"{choice.curve.tokens:,} of {choice.curve.cells:,} cells kept ({choice.curve.keep_rate:.1%})"
    return f"{kept} at tau {choice.tau:.4g}; mask found in {milliseconds:.0f} ms."
