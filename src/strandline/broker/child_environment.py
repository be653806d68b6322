"""The environment of processes that a broker starts: variables that are known to hold no secret.

The broker's own may hold its administrator's token and key material (``STRANDLINE_…``), and any
program that runs as the same user can read the environment of a process.
"""

import os
from typing import Final

_KEPT: Final = frozenset(
    (
        *("PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT"),  # for operators of nats-server
    )
)


def child_environment() -> dict[str, str]:
    """Return the part of the broker's environment that its children may have."""
    return {
        name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")
    }
