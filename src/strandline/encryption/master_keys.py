"""Master keys: an operator keeps them, and they wrap data keys.

A key source is text with one key a line (or separated by blanks or commas): 32 bytes in base64. The
first key wraps new data keys; the others unwrap what they have wrapped. A line may end with a
comment after ``#``.

Rules: a key's id is a hash of the key, so a wrong key is never tried. The source is read again for
an unknown id, because an operator may have just added the key.
"""

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Final

from strandline.errors import EncryptionKeyError, InvalidConfigError

KEY_BYTES: Final = 32
KEY_SIZES: Final = (16, 32)
"""The sizes of AES keys that may wrap: ours have 32 bytes, Liftbridge's may have 16."""
TEXT_BYTES_MAX: Final = 64 << 10
_ID_BYTES = 8


class MasterKey:
    """One master key."""

    __slots__ = ("id", "secret")

    def __init__(self, secret: bytes) -> None:
        if len(secret) not in KEY_SIZES:
            raise InvalidConfigError(
                f"a master key has {KEY_BYTES} bytes, not {len(secret)}; make one with "
                "'strandline encryption new-key'"
            )
        self.secret = secret
        self.id = digest_id(b"strandline master key", secret)

    def __repr__(self) -> str:
        return f"MasterKey({self.id})"


def digest_id(purpose: bytes, secret: bytes) -> str:
    """Return a name for a key that reveals nothing about it."""
    return hashlib.sha256(purpose + b"\0" + secret).digest()[:_ID_BYTES].hex()


def new_key_text() -> str:
    """Return a new master key, as written in a key source."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def parse_master_keys(text: str, source: str) -> tuple[MasterKey, ...]:
    """Parse the keys in the text of a key source; the first one is current.

    Args:
        text: one key a line, or separated by blanks or commas.
        source: the name of the source in messages, which never show any of the text.

    Raises:
        InvalidConfigError: the text has a word that is not a key, or a key twice.
    """
    keys: list[MasterKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"[\s,]+", line.partition("#")[0])
        keys += [_parsed(word, f"{source}, line {number}") for word in words if word]
    if len({key.id for key in keys}) < len(keys):
        raise InvalidConfigError(f"{source} has a key twice; leave one out")
    return tuple(keys)


def _parsed(word: str, where: str) -> MasterKey:
    try:
        secret = base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise InvalidConfigError(
            f"{where}: not {KEY_BYTES} bytes in base64; make a key with "
            "'strandline encryption new-key'"
        )
    return MasterKey(secret)


def _no_keys() -> tuple[MasterKey, ...]:
    return ()


class MasterKeys:
    """The master keys of a broker; any thread.

    Args:
        load: reads the source; called at once, and when a key is not known.
        source: the name of the source in messages.
    """

    def __init__(
        self, load: Callable[[], tuple[MasterKey, ...]] = _no_keys, source: str = ""
    ) -> None:
        self._load = load
        self.source = source or "encryption.key_file or STRANDLINE_ENCRYPTION_KEY"
        self._keys = load()

    @property
    def has_any(self) -> bool:
        """Whether there is a key."""
        return bool(self._keys)

    def reload(self) -> None:
        """Read the source again.

        Raises:
            InvalidConfigError: the source no longer has valid keys; the known ones stay.
        """
        self._keys = self._load()

    @property
    def current(self) -> MasterKey:
        """Return the key that wraps new data keys.

        Raises:
            EncryptionKeyError: the source has no keys.
        """
        if not self._keys:
            raise EncryptionKeyError(
                "this broker has no master key: make one with 'strandline encryption new-key' and "
                f"name it in {self.source}"
            )
        return self._keys[0]

    def find(self, master: str, *, what: str) -> MasterKey:
        """Return the key with this id.

        Args:
            master: the id.
            what: what the key is for, as the message's subject.

        Raises:
            EncryptionKeyError: the source does not have the key, even after reading it again.
        """
        found = self._known(master)
        if found is None:
            try:
                self.reload()
            except InvalidConfigError as error:
                raise EncryptionKeyError(
                    f"{what} needs master key {master}, and the keys cannot be read: "
                    f"{error.message}"
                ) from error
            found = self._known(master)
        if found is None:
            ids = ", ".join(key.id for key in self._keys) or "none"
            raise EncryptionKeyError(
                f"{what} needs master key {master}, which {self.source} does not have (it has "
                f"{ids}); add the key that has this id"
            )
        return found

    def _known(self, master: str) -> MasterKey | None:
        return next((key for key in self._keys if key.id == master), None)
