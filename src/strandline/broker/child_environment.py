"""The environment of processes that a broker starts: only variables that hold no secret.

The broker's own environment may hold its administrator's token and key material
(``STRANDLINE_…``), and any program of the same user can read a process's environment.
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
