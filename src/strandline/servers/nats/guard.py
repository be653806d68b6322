"""Who may publish through the ingest listener: CONNECT says who it is, each subject is asked about.

Rules: before CONNECT was accepted nothing else is, and no large payload is waited for. A subject
that was allowed is remembered until any rule or token changes, so that a publish costs a look into
a set; whose token was revoked is disconnected with its next bytes.
"""

from typing import Final

import msgspec

from strandline.broker.access import Access, Caller
from strandline.errors import StrandlineError
from strandline.security.acl import Resource
from strandline.security.policy import ClientCredentials, Policy

EARLY_PAYLOAD_MAX: Final = 64 << 10
"""Largest payload taken note of before it is known who sends it."""
REMEMBERED_MAX: Final = 16_384


class Claims(msgspec.Struct, frozen=True):
    """What of CONNECT says who somebody is, as stock clients send it."""

    auth_token: str | None = None
    password: str | None = msgspec.field(default=None, name="pass")
    """A token too, for clients that can only send a user and a password; the user is not read."""

    @property
    def token(self) -> str | None:
        """The token; None: none was shown."""
        return self.auth_token if self.auth_token is not None else self.password


class PublishGuard:
    """Guards one connection.

    Args:
        access: the listener's door, where access is checked.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._caller: Caller | None = None
        self._policy: Policy | None = None
        self._allowed: set[bytes] = set()

    @property
    def is_open(self) -> bool:
        """Whether it is known who is there."""
        return self._caller is not None

    @property
    def caller(self) -> Caller:
        """Who is there."""
        assert self._caller is not None, "asked after connect"
        return self._caller

    def connect(self, claims: Claims, certificate: str | None) -> None:
        """Find out who it is.

        Raises:
            StrandlineError: nobody who may do anything here.
        """
        caller = self._access.identify(ClientCredentials(claims.token, certificate))
        caller.check_known()
        self._caller = caller
        self._forget()

    def refresh(self) -> None:
        """Forget what was allowed if rules or tokens have changed, or may have.

        Raises:
            StrandlineError: nothing is allowed any more.
        """
        if self._caller is None:
            return
        if self._access.policy is not self._policy or not self._caller.is_leased:
            self.check_current()
            self._forget()

    def check_current(self) -> None:
        """Look whether it is still somebody.

        Raises:
            StrandlineError: not any more.
        """
        if self._caller is not None:
            self._caller.check_known()

    def _forget(self) -> None:
        self._policy = self._access.policy
        self._allowed.clear()

    def allows(self, subject: bytes) -> bool:
        """Whether a plain subject may be published to."""
        return subject in self._allowed or self._ask(subject)

    def _ask(self, subject: bytes) -> bool:
        assert self._caller is not None, "connected"
        try:
            self._caller.check(Resource("subject", subject.decode()), "publish")
        except StrandlineError:
            return False
        if len(self._allowed) >= REMEMBERED_MAX:
            self._allowed.clear()
        self._allowed.add(subject)
        return True
