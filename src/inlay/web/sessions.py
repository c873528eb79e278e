# SPDX-License-Identifier: Apache-2.0
"""The sessions of all visitors: a bounded number of them, the one unused for longest closed first."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from pathlib import Path

from inlay.web.session import Session

IDLE_SECONDS = 3600.0


class Sessions:
    """Everyone's sessions. Names come from browsers and never become parts of paths."""

    def __init__(self, folder: Path, *, most: int = 16, idle_seconds: float = IDLE_SECONDS) -> None:
        self.folder, self.most, self.idle_seconds = folder, most, idle_seconds
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, tuple[Session, float]] = OrderedDict()

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
        for old in stale:
            old.close()
        return session

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
            session.close()

    def close(self) -> None:
        with self._lock:
            sessions = [session for session, _ in self._sessions.values()]
            self._sessions.clear()
        for session in sessions:
            session.close()
