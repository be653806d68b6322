"""Whether who asks may: the policy of the metadata as it is now, for front ends.

Rules: safe on any thread, as it reads one image and changes nothing of it. Where ``auth.enabled``
is off everybody may do everything, and asking costs a look at a flag. A decision is made anew at
every question, so that what is revoked ends also what is under way.
"""

from pathlib import Path
from typing import Protocol

from strandline.clock import Clock
from strandline.config import AuthConfig, BrokerConfig
from strandline.errors import InvalidConfigError
from strandline.metadata.image import MetadataImage
from strandline.security.acl import Operation, Resource
from strandline.security.policy import Identity, Policy, Settings, Shown
from strandline.security.principal import ANONYMOUS, Principal
from strandline.security.tokens import BOOTSTRAP_CHARACTERS_MIN, TEXT_BYTES_MAX, fingerprint


class Guarded(Protocol):
    """What of a broker decisions need."""

    @property
    def clock(self) -> Clock:
        """Where the time comes from."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The metadata as it is now."""
        ...


class Access:
    """The door of one front end.

    Args:
        config: whether anything is checked, and who may do everything.
        broker: whose metadata says who may do what.

    Raises:
        InvalidConfigError: the file with the administrator's token is of no use.
    """

    def __init__(self, config: BrokerConfig, broker: Guarded) -> None:
        self._broker = broker
        self.is_on = config.auth.enabled
        self._settings = _settings(config.auth)
        self._made: tuple[MetadataImage, Policy] | None = None

    @property
    def policy(self) -> Policy:
        """Who may do what now; another object whenever that may have changed."""
        image, made = self._broker.image, self._made
        if made is not None:
            of, policy = made
            if of is image or (of.rules is image.rules and of.tokens is image.tokens):
                return policy
        policy = Policy(image.rules, image.tokens, self._settings)
        self._made = (image, policy)
        return policy

    def identify(self, shown: Shown) -> "Asker":
        """Who shows this.

        Raises:
            UnauthenticatedError: nobody who is known here.
        """
        if not self.is_on:
            return Asker(self, Identity(ANONYMOUS))
        return Asker(self, self.policy.identify(shown, self._broker.clock.now_ns()))

    def check_current(self, identity: Identity) -> None:
        """Refuse whose token is worth nothing any more.

        Raises:
            UnauthenticatedError: it was revoked, or has expired.
        """
        self.policy.check_current(identity, self._broker.clock.now_ns())


class Asker:
    """Somebody who asks, for as long as a call or a connection lasts.

    Args:
        access: the door.
        identity: who it was found to be there.
    """

    __slots__ = ("_access", "_identity", "_is_on")

    def __init__(self, access: Access, identity: Identity) -> None:
        self._access = access
        self._identity = identity
        self._is_on = access.is_on

    @property
    def is_checked(self) -> bool:
        """Whether anything is refused here at all."""
        return self._is_on

    @property
    def principal(self) -> Principal:
        """Who it is; nobody in particular where access is not checked."""
        return self._identity.principal

    def check(self, resource: Resource, *operations: Operation) -> None:
        """Refuse who may do none of some operations, each of which would do.

        Raises:
            UnauthenticatedError: its token is worth nothing any more.
            NotAllowedError: no rule allows it.
        """
        if self._is_on:
            self._access.check_current(self._identity)
            self._access.policy.check(self.principal, operations, resource)

    def check_known(self) -> None:
        """Refuse whom no rule names.

        Raises:
            UnauthenticatedError: its token is worth nothing any more.
            NotAllowedError: it is allowed nothing at all.
        """
        if self._is_on:
            self._access.check_current(self._identity)
            self._access.policy.check_known(self.principal)

    def may(self, resource: Resource, *operations: Operation) -> bool:
        """Whether it may do one of some operations."""
        if not self._is_on:
            return True
        policy = self._access.policy
        return any(policy.allows(self.principal, each, resource) for each in operations)


def read_secret(file: str, *, key: str) -> str:
    """The text of a file that holds a secret, without what surrounds it.

    Raises:
        InvalidConfigError: it cannot be read, or holds none; the secret is not in the message.
    """
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(TEXT_BYTES_MAX + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{key}: cannot read {file}: {error}") from error
    if not BOOTSTRAP_CHARACTERS_MIN <= len(text) <= TEXT_BYTES_MAX:
        raise InvalidConfigError(
            f"{key}: {file} holds no token of {BOOTSTRAP_CHARACTERS_MIN} to {TEXT_BYTES_MAX} "
            "characters; make one with 'openssl rand -hex 32'"
        )
    return text


def _settings(auth: AuthConfig) -> Settings:
    if not auth.enabled:
        return Settings()
    token = auth.admin_token
    if auth.admin_token_file:
        token = read_secret(auth.admin_token_file, key="auth.admin_token_file")
    return Settings(fingerprint(token) if token else b"", frozenset(auth.admins))
