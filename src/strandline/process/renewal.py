"""Renewal of certificates while the broker runs, once a minute or on request.

Rules: only changed files are read. If they cannot be used, such as while one is being written, the
old certificate stays in use, an error is logged, and the next check tries again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from strandline.config import BrokerConfig
from strandline.errors import StrandlineError

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 60.0
Stamp = tuple[int, int, int] | None
"""The identity of a file's version; None if the file does not exist."""


def certificate_files(config: BrokerConfig) -> tuple[Path, ...]:
    """Return the files of a broker's settings that hold certificates and keys."""
    tls, cluster = config.tls, config.cluster
    towards_clients = (tls.certificate, tls.key, tls.authority)
    between_brokers = (cluster.tls_certificate, cluster.tls_key, cluster.tls_authority)
    return tuple(Path(name) for name in (*towards_clients, *between_brokers) if name)


class CertificateWatch:
    """A task that checks certificate files and reloads them when they have changed.

    Args:
        files: the certificate and key files, which have been read already.
        renew: reads the files; raises ``StrandlineError`` if they cannot be used.
    """

    def __init__(self, files: Iterable[Path], renew: Callable[[], None]) -> None:
        self._files = tuple(files)
        self._renew = renew
        self._known = self._look()
        self._asked = asyncio.Event()

    def look_now(self) -> None:
        """Check the certificate files now, not at the next interval."""
        self._asked.set()

    async def run(self) -> None:
        """Check the files at intervals until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._asked.wait()
            except TimeoutError:
                pass  # the interval has passed
            self._asked.clear()
            self._renew_if_changed()

    def _renew_if_changed(self) -> None:
        found = self._look()
        if found == self._known:
            return
        try:
            self._renew()
        except StrandlineError as error:
            logger.error(  # noqa: TRY400  no trace
                "the old certificates stay in use, since the new ones are invalid: %s", error
            )
        else:
            self._known = found
            logger.info("renewed the certificates")

    def _look(self) -> tuple[Stamp, ...]:
        return tuple(map(_stamp, self._files))


def _stamp(file: Path) -> Stamp:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
