"""Data keys: created for a stream, wrapped by a master key, and rewrapped when that one changes.

Rules: wrapping is AES key wrap (RFC 3394), which needs no nonce and detects a wrong key. The number
and the fingerprint of a data key never change, whichever master key wraps it, so that no operator
can replace it by another key.
"""

import secrets
from typing import Final

from cryptography.hazmat.primitives.keywrap import (
    InvalidUnwrap,
    aes_key_unwrap,
    aes_key_wrap,
)

from strandline.encryption.master_keys import MasterKey, MasterKeys, digest_id
from strandline.errors import EncryptionKeyError
from strandline.types import WrappedKey

DATA_KEY_BYTES: Final = 32
FIRST_NUMBER: Final = 1


def new_data_key(master: MasterKey, number: int = FIRST_NUMBER) -> WrappedKey:
    """Return a new data key, wrapped."""
    return _wrapped(secrets.token_bytes(DATA_KEY_BYTES), master, number)


def _wrapped(secret: bytes, master: MasterKey, number: int) -> WrappedKey:
    fingerprint = digest_id(b"strandline data key", secret)
    return WrappedKey(number, master.id, aes_key_wrap(master.secret, secret), fingerprint)


def unwrapped(key: WrappedKey, master_keys: MasterKeys, *, stream: str) -> bytes:
    """Return the data key itself.

    Raises:
        EncryptionKeyError: its master key is not available, or does not fit.
    """
    what = f"data key {key.number} of stream {stream!r}"
    master = master_keys.find(key.master, what=what)
    try:
        secret = aes_key_unwrap(master.secret, key.wrapped)
    except InvalidUnwrap:
        secret = b""
    if digest_id(b"strandline data key", secret) != key.fingerprint:
        raise EncryptionKeyError(
            f"{what} does not unwrap with master key {key.master}: the metadata was changed or is "
            "corrupt; restore it from a backup"
        )
    return secret


def rewrapped(key: WrappedKey, master_keys: MasterKeys, *, stream: str) -> WrappedKey:
    """Return the same data key, wrapped by the current master key.

    Raises:
        EncryptionKeyError: the master key that wrapped it is not available.
    """
    current = master_keys.current
    if key.master == current.id:
        return key
    return _wrapped(unwrapped(key, master_keys, stream=stream), current, key.number)
