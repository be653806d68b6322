"""Keys as NATS writes them, and the signed tokens (JWT) that it exchanges about users.

A public key is base32 of a prefix byte, which says what the key is for, the 32 bytes of an Ed25519
key and a CRC-16 of both. A token is header, claims and signature in base64url, joined by dots.

Rules: private keys are made here, at every start, and leave the process in no form; any bytes that
claim to be a token cost their sender an error. Pure but for the randomness of a new key.
"""

import base64
import binascii
from typing import Any, Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from strandline.errors import UNDECODABLE, InvalidRecordError

ACCOUNT: Final = 0
SERVER: Final = 13 << 3
USER: Final = 20 << 3
HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
TOKEN_BYTES_MAX: Final = 1 << 20
KEY_BYTES: Final = 32
T = TypeVar("T")


class _Header(msgspec.Struct, frozen=True):
    typ: str
    alg: str


class KeyPair:
    """A fresh pair.

    Args:
        kind: what it is for: ``ACCOUNT`` or ``USER``.
    """

    def __init__(self, kind: int) -> None:
        self._private = Ed25519PrivateKey.generate()
        self.public = encode_public(kind, self._private.public_key().public_bytes_raw())
        """As NATS writes it."""

    def sign(self, data: bytes) -> str:
        """A signature as NATS clients send it."""
        return _base64(self._private.sign(data)).decode()

    def token(self, claims: dict[str, Any]) -> str:
        """Claims, signed in the name of this key."""
        body = b".".join(_base64(msgspec.json.encode(each)) for each in (HEADER, claims))
        return f"{body.decode()}.{self.sign(body)}"


def encode_public(kind: int, raw: bytes) -> str:
    """A public key as NATS writes it."""
    data = bytes([kind]) + raw
    crc = binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data + crc).decode().rstrip("=")


def decode_public(kind: int, text: str) -> bytes:
    """The 32 bytes of a public key.

    Raises:
        InvalidRecordError: not a key, or not of this kind.
    """
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError as error:
        raise InvalidRecordError("not a NATS key") from error
    body, crc = data[:-2], data[-2:]
    is_whole = len(body) == 1 + KEY_BYTES and body[0] == kind
    if not is_whole or crc != binascii.crc_hqx(body, 0).to_bytes(2, "little"):
        raise InvalidRecordError("not a NATS key of the kind that is needed")
    return body[1:]


def verified_claims(token: bytes, signer: str, kind: type[T]) -> T:
    """The claims of a token that a server has signed.

    Args:
        token: as it came.
        signer: the server's public key.
        kind: type of the claims.

    Raises:
        InvalidRecordError: no such token, or signed by somebody else.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidRecordError(f"a token of {len(token)} bytes")
    body, _, signature = token.rpartition(b".")
    header, _, claims = body.partition(b".")
    try:
        found = msgspec.json.decode(_unbase64(header), type=_Header)
        if msgspec.structs.asdict(found) != HEADER:
            raise InvalidRecordError(f"a token of algorithm {found.alg[:20]!r}")
        public = Ed25519PublicKey.from_public_bytes(decode_public(SERVER, signer))
        public.verify(_unbase64(signature), body)
        return msgspec.json.decode(_unbase64(claims), type=kind)
    except InvalidSignature as error:
        raise InvalidRecordError(
            "the token's signature is not valid for the server's key"
        ) from error
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a token: {error}") from error


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _unbase64(data: bytes) -> bytes:
    return base64.urlsafe_b64decode(data + b"=" * (-len(data) % 4))
