"""Certificates that change while the broker runs: looked at once a minute, or when asked.

Rules: only files that have changed are read, and what cannot be used leaves the old in force,
loudly: a certificate that is half written must cost nobody a connection. It is tried again at the
next look.
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
"""What tells one version of a file from the next; None: it is not there."""


def certificate_files(config: BrokerConfig) -> tuple[Path, ...]:
    """The files of a broker's settings that hold certificates and keys."""
    tls, cluster = config.tls, config.cluster
    towards_clients = (tls.certificate, tls.key, tls.authority)
    between_brokers = (cluster.tls_certificate, cluster.tls_key, cluster.tls_authority)
    return tuple(Path(name) for name in (*towards_clients, *between_brokers) if name)


class CertificateWatch:
    """Watches files, and has them read when they have changed.

    Args:
        files: of certificates and keys, as they were read already.
        renew: reads them; a ``StrandlineError`` says why they are of no use.
    """

    def __init__(self, files: Iterable[Path], renew: Callable[[], None]) -> None:
        self._files = tuple(files)
        self._renew = renew
        self._known = self._look()
        self._asked = asyncio.Event()

    def look_now(self) -> None:
        """Check the certificate files now instead of at the next interval."""
        self._asked.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._asked.wait()
            except TimeoutError:
                pass  # a look is due all the same
            self._asked.clear()
            self._renew_if_changed()

    def _renew_if_changed(self) -> None:
        found = self._look()
        if found == self._known:
            return
        try:
            self._renew()
        except StrandlineError as error:
            logger.error("certificates have changed and are of no use, the old stay: %s", error)  # noqa: TRY400  no trace
        else:
            self._known = found
            logger.info("certificates were renewed")

    def _look(self) -> tuple[Stamp, ...]:
        return tuple(map(_stamp, self._files))


def _stamp(file: Path) -> Stamp:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
