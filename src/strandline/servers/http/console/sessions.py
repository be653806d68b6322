"""Sessions of the console's users, and the CSRF tokens of their forms.

Rules: a cookie holds a random id and nothing else; the user's token stays in the memory of the
broker. The number of sessions is limited: the least recently used one is ended first. A form
carries a CSRF token that only the server can compute from the cookie, so that another site cannot
post it.
"""

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from strandline.clock import Clock

SESSIONS_MAX: Final = 256
SESSION_MS: Final = 8 * 3_600_000.0
"""A session ends after this time, even if it is in use."""
ID_BYTES: Final = 24


class ConsoleSession(NamedTuple):
    """The session of a user who has logged in with a token."""

    token: str
    principal: str
    ends_ms: float

    def __repr__(self) -> str:
        """Return the principal without the token."""
        return f"ConsoleSession({self.principal!r})"


class SessionStore:
    """The sessions of one broker; any thread.

    Args:
        clock: the source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._held: OrderedDict[str, ConsoleSession] = OrderedDict()

    def open(self, token: str, principal: str) -> str:
        """Begin a session; return its id, which is put into the cookie."""
        session_id = new_session_id()
        ends_ms = self._clock.monotonic_ms() + SESSION_MS
        with self._lock:
            self._held[session_id] = ConsoleSession(token, principal, ends_ms)
            while len(self._held) > SESSIONS_MAX:
                self._held.popitem(last=False)
        return session_id

    def find(self, session_id: str) -> ConsoleSession | None:
        """Return a session; None if it has ended."""
        with self._lock:
            found = self._held.get(session_id)
            if found is None:
                return None
            if found.ends_ms <= self._clock.monotonic_ms():
                del self._held[session_id]
                return None
            self._held.move_to_end(session_id)
            return found

    def close(self, session_id: str) -> None:
        """End a session; without effect if it has ended."""
        with self._lock:
            self._held.pop(session_id, None)

    def csrf_token(self, session_id: str) -> str:
        """Return the CSRF token for forms that belong to a cookie."""
        return hmac.new(self._key, session_id.encode(), hashlib.sha256).hexdigest()

    def is_csrf_token(self, session_id: str, token: str) -> bool:
        """Return whether this process made a CSRF token for this cookie."""
        return hmac.compare_digest(self.csrf_token(session_id).encode(), token.encode())


def new_session_id() -> str:
    """Return a new random id for a cookie."""
    return secrets.token_urlsafe(ID_BYTES)
