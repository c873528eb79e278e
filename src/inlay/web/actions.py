# SPDX-License-Identifier: Apache-2.0
"""What the page shows after each thing a visitor does: plain functions, with no knowledge of Gradio."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from inlay.errors import InlayError, UsageError
from inlay.tokenizer import Tokenizer
from inlay.web import render
from inlay.web.clips import built_in
from inlay.web.limits import Limits
from inlay.web.session import Advance, Session
from inlay.web.sessions import Sessions

BY_TAU, BY_KEEP = "threshold (tau)", "keep rate"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything on the page that depends on the session."""

    status: str
    panels: str
    strip: str
    curve: str
    table: str
    frames: int  # 0: there is no clip
    frame: int
    tau: float | None = None  # set where the sliders must follow
    most_tau: float | None = None
    keep: float | None = None  # percent
    least_keep: float | None = None
    can_choose: bool = False  # there are latents, so the mask can change
    can_decode: bool = False
    token_file: Path | None = None
    film: Path | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Actions:
    """One for the whole server: the model, the limits and the sessions."""

    tokenizer: Tokenizer
    sessions: Sessions
    limits: Limits
    uploads: Path = field(default_factory=Path)  # where the files of visitors lie; others are not opened

    @property
    def fills(self) -> list[str]:
        """Those to choose between: the best LIT at hand, and the two without weights."""
        filler = self.tokenizer.filler
        best = next((name for name in ("lit", "lit-paper") if name in filler.lits), "hold")
        return [name for name in render.FILL_NAMES if name in {filler.default, "hold", "linear", best}]

    def pick(self, visitor: str | None, name: str, fill: str, advance: Advance) -> View:
        def work(session: Session) -> str:
            start = time.perf_counter()
            advance(0.0, "Painting the clip")
            video = built_in(str(name))
            session.load(self.tokenizer, video, name, time.perf_counter() - start, advance)
            return self._loaded(session)

        return self._try(visitor, work, 0, fill, anew=True)

    def upload(self, visitor: str | None, path: str | None, fill: str, advance: Advance) -> View:
        def work(session: Session) -> str:
            session.load_file(self.tokenizer, self._own(session, path), self.limits, advance)
            return self._loaded(session)

        advance = self._in_time(advance)
        return self._try(visitor, work, 0, fill, anew=True)

    def upload_tokens(self, visitor: str | None, path: str | None, fill: str, advance: Advance) -> View:
        def work(session: Session) -> str:
            session.load_tokens(self.tokenizer, self._own(session, path), self.limits)
            self._decode(session, fill, advance)
            return f"Decoded {session.name}. There is no original to compare with."

        advance = self._in_time(advance)
        return self._try(visitor, work, 0, fill, anew=True)

    def choose(self, visitor: str | None, mode: str, tau: float, keep: float, frame: int, fill: str) -> View:
        """A slider moved: only the mask is computed."""

        def work(session: Session) -> str:
            start = time.perf_counter()
            choice = session.choose_tau(float(tau)) if mode == BY_TAU else session.choose_keep(float(keep) / 100)
            spent = 1000 * (time.perf_counter() - start)
            rate = f"{choice.curve.keep_rate:.1%}, mode {choice.mode}"
            kept = f"{choice.curve.tokens:,} of {choice.curve.cells:,} cells kept ({rate})"
            return f"{kept} at tau {choice.tau:.4g}; mask found in {spent:.0f} ms."

        return self._try(visitor, work, frame, fill)

    def reconstruct(self, visitor: str | None, frame: int, fill: str, advance: Advance) -> View:
        def work(session: Session) -> str:
            if not self._decode(session, fill, advance):
                return "The mask has changed meanwhile; reconstruct once more."
            return f"Reconstructed with {render.FILL_NAMES[fill]}. Choose another fill and reconstruct to compare."

        advance = self._in_time(advance)
        return self._try(visitor, work, frame, fill)

    def look(self, visitor: str | None, frame: int, fill: str) -> View:
        """Another frame, or another fill that may have been reconstructed before."""

        def work(session: Session) -> str:
            if session.choice is None:
                return f"This page takes videos {self.limits}."
            if fill in session.results:
                return f"Showing the reconstruction with {render.FILL_NAMES[fill]}."
            return f"Not reconstructed with {render.FILL_NAMES.get(fill, fill)} yet."

        return self._try(visitor, work, frame, fill)

    def _loaded(self, session: Session) -> str:
        choice, video = session.choice, session.original
        assert choice is not None and video is not None, "a session that was loaded has a clip and a mask"
        kept = f"{choice.curve.keep_rate:.1%} of its cells are kept at tau {choice.tau:.4g}, mode {choice.mode}"
        return f"{session.name}: {len(video)} frames {video.width}x{video.height}; {kept}."

    def _decode(self, session: Session, fill: str, advance: Advance) -> bool:
        """False: what was decoded is no longer what is shown."""
        result = session.reconstruct(self.tokenizer, fill, advance)
        advance(0.95, "Writing the film")
        render.write_film(result, session.film_place(fill))
        return session.results.get(fill) is result

    def _in_time(self, advance: Advance) -> Advance:
        """The same, which ends what takes longer than one visitor may make the others wait."""
        end = time.monotonic() + self.limits.max_work

        def within(share: float, what: str) -> None:
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
        self, visitor: str | None, work: Callable[[Session], str], frame: int, fill: str, *, anew: bool = False
    ) -> View:
        """Errors stay with the visitor who made them, as a line on the page; what was there before stays there."""
        session = self.sessions.of(visitor)
        before = session.choice
        try:
            status = f'<p class="inlay-status" role="status">{escape(work(session))}</p>'
        except InlayError as error:
            status = f'<p class="inlay-status inlay-error" role="alert">{escape(str(error))}</p>'
        except Exception:  # a defect of ours must not end the page, nor tell a stranger where our files lie
            log.exception("a request failed")
            status = '<p class="inlay-status inlay-error" role="alert">Something went wrong here; please try again.</p>'
        return self._view(session, status, frame, fill, anew=anew and session.choice is not before)

    def _view(self, session: Session, status: str, frame: int, fill: str, *, anew: bool) -> View:
        with session.lock:
            choice, latents = session.choice, session.latents
            film = session.film_place(fill) if fill in session.results else None
            token_file = session.token_file if session.results else None
            frames = choice.frames if choice is not None else 0
            frame = frames // 2 if anew else min(max(int(frame or 0), 0), max(frames - 1, 0))
            return View(
                status=status,
                panels=render.panels(session, frame, fill),
                strip=render.mask_strip(session),
                curve=render.curve(session, frame),
                table=render.table(session),
                frames=frames,
                frame=frame,
                tau=choice.tau if anew and choice is not None else None,
                most_tau=4 * latents.start if anew and latents is not None else None,
                keep=100 * choice.curve.keep_rate if anew and choice is not None else None,
                least_keep=100 * session.least_keep if anew else None,
                can_choose=latents is not None,
                can_decode=choice is not None,
                token_file=token_file,
                film=film if film is not None and film.is_file() else None,
            )
