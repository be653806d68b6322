"""The source of a broker's master keys: a file, or the environment.

Rules: no part of a key is ever logged or shown. The file is read again when an unknown key is
looked up; the environment is read only at the start.
"""

import logging
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from strandline.config import BrokerConfig
from strandline.encryption.master_keys import (
    KEY_SIZES,
    TEXT_BYTES_MAX,
    MasterKey,
    MasterKeys,
    parse_master_keys,
)
from strandline.errors import InvalidConfigError

logger = logging.getLogger(__name__)

VARIABLE: Final = "STRANDLINE_ENCRYPTION_KEY"
LIFTBRIDGE_VARIABLE: Final = "LIFTBRIDGE_ENCRYPTION_KEY"
"""Liftbridge's variable, used if its API is on: the bytes of the text are the key."""


def master_keys(config: BrokerConfig, environ: Mapping[str, str]) -> MasterKeys:
    """Return the master keys of a broker; there may be none.

    Raises:
        InvalidConfigError: a source holds no list of keys, or there are two sources.
    """
    text, file = environ.get(VARIABLE, ""), config.encryption.key_file
    if file and text:
        raise InvalidConfigError(f"both encryption.key_file and {VARIABLE} are set; keep one")
    if file:
        _warn_if_open(Path(file))
        return MasterKeys(_KeyFile(Path(file)).read, file)
    if text:
        return MasterKeys(lambda: parse_master_keys(text, VARIABLE), VARIABLE)
    raw = environ.get(LIFTBRIDGE_VARIABLE, "").encode()
    if not raw or config.grpc.port < 0:
        return MasterKeys()
    if len(raw) not in KEY_SIZES:  # as in Liftbridge, only encrypted streams are rejected
        text = "%s: invalid AES key size %d, so no stream can be encrypted; set 16 or 32 bytes"
        logger.warning(text, LIFTBRIDGE_VARIABLE, len(raw))
        return MasterKeys()
    return MasterKeys(lambda: (MasterKey(raw),), LIFTBRIDGE_VARIABLE)


class _KeyFile:
    """A file of keys; it is parsed only if it has changed, since each publish may read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._keys: tuple[MasterKey, ...] = ()

    def read(self) -> tuple[MasterKey, ...]:
        """Return the keys that the file has now.

        Raises:
            InvalidConfigError: the file cannot be read, or is not a list of keys.
        """
        try:
            found = self._path.stat()
        except OSError:
            found = None  # the read below reports the error
        seen = (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else ()
        if not seen or seen != self._seen:
            self._keys = _read(self._path)
            self._seen = seen
        return self._keys


def _read(file: Path) -> tuple[MasterKey, ...]:
    try:
        with file.open("rb") as source:
            data = source.read(TEXT_BYTES_MAX + 1)
        text = data.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        # The decoding error itself is not reported, because it would show parts of a key.
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise InvalidConfigError(f"encryption.key_file {file} cannot be read: {why}") from None
    if len(data) > TEXT_BYTES_MAX:
        raise InvalidConfigError(
            f"encryption.key_file {file} is too long for a list of keys, which has at most "
            f"{TEXT_BYTES_MAX} bytes; name another file"
        )
    keys = parse_master_keys(text, str(file))
    if not keys:
        raise InvalidConfigError(
            f"encryption.key_file {file} has no key; make one with 'strandline encryption new-key'"
        )
    return keys


def _warn_if_open(file: Path) -> None:
    """Log a warning if other users may read the keys; for a mounted secret that may be intended."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return  # the read of the file reports the error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        logger.warning("%s can be read by others: chmod 400 it", file)
