# SPDX-License-Identifier: Apache-2.0
"""The sessions of all visitors: a bounded number of them, the one unused for longest closed first."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from inlay.web.session import Session

IDLE_SECONDS = 3600.0


class Sessions:
    """Everyone's sessions. Names come from browsers and never become parts of paths."""

    def __init__(
        self, folder: Path, *, most: int = 16, idle_seconds: float = IDLE_SECONDS, fresh_seconds: float = 0.0
    ) -> None:
        self.folder, self.most, self.idle_seconds, self.fresh_seconds = folder, most, idle_seconds, fresh_seconds
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, tuple[Session, float]] = OrderedDict()
        self._left: dict[Path, int] = {}  # uploads to remove once they are no longer fresh

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, name: str | None) -> Session:
        """The session of this name, made if need be."""
        name = name or ""
        now = time.monotonic()
        with self._lock:
            session, _ = self._sessions.pop(name, (None, 0.0))
            stale = self._stale(now, most=self.most - 1)
            if session is None:
                folder = self.folder / secrets.token_hex(16)
                folder.mkdir(mode=0o700, parents=True)
                session = Session(folder=folder)
            self._sessions[name] = (session, now)
        self._put_away(stale)
        return session

    def tidy(self) -> None:
        """Put away the sessions that nobody has used for long."""
        with self._lock:
            stale = self._stale(time.monotonic(), most=self.most)
            left, self._left = self._left, {}
        self._put_away(stale)
        held = self._held()
        self._remove({path: since for path, since in left.items() if path not in held})  # others go with their session

    def take(self, session: Session, upload: Path) -> None:
        """An upload belongs to this session now, and those before it go."""
        self._remove_uploads(session, but=upload)
        session.uploads = {upload: upload.stat().st_ctime_ns}

    def _put_away(self, sessions: list[Session]) -> None:
        for session in sessions:
            session.close()
            self._remove_uploads(session)

    def _remove_uploads(self, session: Session, but: Path | None = None) -> None:
        """Equal files of two visitors lie in one place: one that another has stays."""
        held = self._held(but=session)
        self._remove({path: since for path, since in session.uploads.items() if path != but and path not in held})

    def _held(self, but: Session | None = None) -> set[Path]:
        with self._lock:
            return {path for other, _ in self._sessions.values() if other is not but for path in other.uploads}

    def _remove(self, uploads: dict[Path, int]) -> None:
        """What was sent again meanwhile stays. What is fresh waits: somebody else may have sent the same before this
        visitor's turn came, and wait for their own."""
        for path, since in uploads.items():
            with suppress(OSError):
                if path.stat().st_ctime_ns != since:
                    continue
                if time.time() - since / 1e9 < self.fresh_seconds:
                    with self._lock:
                        self._left[path] = since
                    continue
                path.unlink()
                path.parent.rmdir()

    def _stale(self, now: float, *, most: int) -> list[Session]:
        gone = []
        while self._sessions:
            name, (session, used) = next(iter(self._sessions.items()))
            if len(self._sessions) <= most and now - used < self.idle_seconds:
                break
            del self._sessions[name]
            gone.append(session)
        return gone

    def leave(self, name: str | None) -> None:
        """The visitor has closed the page."""
        with self._lock:
            session, _ = self._sessions.pop(name or "", (None, 0.0))
        if session is not None:
            self._put_away([session])

    def close(self) -> None:
        with self._lock:
            sessions = [session for session, _ in self._sessions.values()]
            self._sessions.clear()
        self._put_away(sessions)
