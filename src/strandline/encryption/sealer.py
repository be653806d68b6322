"""Encrypts ("seals") a partition's batches with the stream's data key, and decrypts them.

The cipher is AES-256-GCM. A nonce never repeats under one key, since no batch is encrypted with the
data key itself. Each run of a broker draws, for each partition, a salt of 128 random bits. It
derives a key from data key, salt and partition (HKDF-SHA-256), and counts its nonces from 0. So
nothing has to be stored, and records that are lost in a crash and written again have another key.
Offsets would not work as nonces, because an uncommitted offset may be used again.

Rules: any thread. An unencrypted batch is rejected, since otherwise anyone with write access to the
disk could add records; placeholders are skipped, since they have no records. Unwrapped keys are
kept as long as the partition.
"""

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from strandline.encryption.data_keys import DATA_KEY_BYTES, unwrapped
from strandline.encryption.master_keys import MasterKeys
from strandline.errors import DecryptionError, UnavailableError
from strandline.record.batch import HEADER_BYTES, Attributes, BatchHeader, Buffer, iter_headers
from strandline.record.sealed import (
    COLUMNS_AT,
    NONCE_BYTES,
    SALT_BYTES,
    SEAL_BYTES,
    Seal,
    associated_data,
    is_sealed,
    put_checksum,
    put_plain_header,
    read_seal,
    sealed_frame,
)
from strandline.types import PartitionName, WrappedKey

logger = logging.getLogger(__name__)

SESSION_BATCHES_MAX: Final = 1 << 32
"""A new salt is drawn after this many batches, far fewer than AES-GCM allows for one key."""
DERIVED_MAX: Final = 256
"""Derived keys cached for reading; when full, the cache is cleared."""

_REMOVED = int(Attributes.REMOVED)

WrappedKeys = Callable[[], tuple[WrappedKey, ...]]


class EncryptionSession:
    """A derived key, and the count of nonces used with it."""

    def __init__(self, secret: bytes, partition: int, *, key_number: int, salt: bytes) -> None:
        self._aead = _derived(secret, salt, partition)
        self._key_number = key_number
        self._salt = salt
        self.used = 0

    def seal(self, batch: Buffer) -> bytearray:
        """Return the batch, sealed under the next nonce; one thread at a time."""
        nonce = self.used.to_bytes(NONCE_BYTES, "little")
        self.used += 1  # before it is used, so that no nonce is used again after an error
        frame = sealed_frame(batch, Seal(self._key_number, nonce, self._salt))
        columns = memoryview(batch)[HEADER_BYTES:]
        self._aead.encrypt_into(
            nonce, columns, associated_data(frame), memoryview(frame)[COLUMNS_AT:]
        )
        put_checksum(frame)
        return frame


class BatchSealer:
    """Seals and decrypts the batches of one partition.

    Args:
        name: the partition.
        keys: returns the stream's present data keys in the metadata, the newest last.
        masters: the master keys that unwrap them.
    """

    def __init__(self, name: PartitionName, keys: WrappedKeys, master_keys: MasterKeys) -> None:
        self._name = name
        self._keys = keys
        self._master_keys = master_keys
        self._lock = threading.Lock()
        self._session: EncryptionSession | None = None
        self._session_key = ""
        self._said = ""
        self._secrets: dict[int, bytes] = {}
        self._derived_keys: dict[tuple[int, bytes], AESGCM] = {}

    # Sealing

    def why_not(self) -> UnavailableError | None:
        """Return why nothing can be sealed now; None if ``seal`` works."""
        if self._session is not None:
            return None
        try:
            with self._lock:
                self._begin()
        except UnavailableError as error:
            if error.message != self._said:
                logger.warning("%s takes no records: %s", self._name, error)
            self._said = error.message
            return error
        return None

    def seal(self, batch: Buffer) -> bytearray:
        """Return the batch, sealed with the newest data key.

        Raises:
            UnavailableError: the key is not available, and nothing was sealed here before.
        """
        with self._lock:
            keys = self._keys()
            session = self._session
            is_old = keys and keys[-1].fingerprint != self._session_key
            if session is None or is_old or session.used >= SESSION_BATCHES_MAX:
                session = self._renewed(session)
            return session.seal(batch)

    def _renewed(self, session: EncryptionSession | None) -> EncryptionSession:
        """Return a session of the newest data key; the present one if that key is not here yet.

        The records were accepted already, and an older data key protects them, too.
        """
        try:
            return self._begin()
        except UnavailableError:
            if session is None or session.used >= SESSION_BATCHES_MAX:
                raise
            return session

    def _begin(self) -> EncryptionSession:
        newest = self._newest()
        secret = self._secret(newest)
        self._session = EncryptionSession(
            secret,
            self._name.partition,
            key_number=newest.number,
            salt=secrets.token_bytes(SALT_BYTES),
        )
        self._session_key = newest.fingerprint
        return self._session

    def _newest(self) -> WrappedKey:
        keys = self._keys()
        if not keys:
            raise UnavailableError(f"no data key of {self._name} is known here yet; retry")
        return keys[-1]

    def _secret(self, key: WrappedKey) -> bytes:
        known = self._secrets.get(key.number)
        if known is None:
            known = unwrapped(key, self._master_keys, stream=self._name.stream)
            self._secrets[key.number] = known
        return known

    # Decrypting

    def decrypt(self, buffer: Buffer) -> pa.Buffer:
        """Return the batches in a buffer as they were before they were sealed; see ``Sealer``."""
        source = memoryview(buffer)
        target = pa.allocate_buffer(len(source))
        view = memoryview(target).cast("B")
        filled = 0
        for position, header in iter_headers(source):
            if header.attributes & _REMOVED:
                continue  # a placeholder that compaction wrote
            room = view[filled : filled + header.length - SEAL_BYTES]
            try:
                self._decrypt_into(room, source[position : position + header.length], header)
            except (DecryptionError, UnavailableError):
                if not filled:
                    raise
                break
            filled += len(room)
        return target.slice(0, filled)

    def _decrypt_into(self, room: memoryview, sealed: memoryview, header: BatchHeader) -> None:
        if not is_sealed(header):
            raise DecryptionError(
                f"the batch at offset {header.base_offset} of {self._name} is not encrypted, as "
                "its stream is: somebody else wrote it; restore the records from a backup"
            )
        seal = read_seal(sealed)
        aead = self._derived_key(seal)
        try:
            aead.decrypt_into(
                seal.nonce, sealed[COLUMNS_AT:], associated_data(sealed), room[HEADER_BYTES:]
            )
        except InvalidTag:
            raise DecryptionError(
                f"the batch at offset {header.base_offset} of {self._name} does not decrypt with "
                f"data key {seal.key_number}; its checksum is right, so it was changed on purpose: "
                "restore the records from a backup"
            ) from None
        put_plain_header(room, sealed)

    def _derived_key(self, seal: Seal) -> AESGCM:
        known = self._derived_keys.get((seal.key_number, seal.salt))
        if known is not None:
            return known
        secret = self._secrets.get(seal.key_number)
        if secret is None:
            secret = self._secret(self._wrapped(seal.key_number))
        if len(self._derived_keys) >= DERIVED_MAX:
            self._derived_keys = {}
        aead = _derived(secret, seal.salt, self._name.partition)
        self._derived_keys[seal.key_number, seal.salt] = aead
        return aead

    def _wrapped(self, number: int) -> WrappedKey:
        for key in self._keys():
            if key.number == number:
                return key
        # Clients retry here or at another broker; the metadata will arrive.
        raise UnavailableError(
            f"data key {number} of stream {self._name.stream!r} is not known here yet; retry"
        )


def _derived(secret: bytes, salt: bytes, partition: int) -> AESGCM:
    """Derive the key of a session; bound to the partition, so batches decrypt in no other one."""
    info = b"strandline batch" + partition.to_bytes(4, "little")
    kdf = HKDF(algorithm=SHA256(), length=DATA_KEY_BYTES, salt=salt, info=info)
    return AESGCM(kdf.derive(secret))
