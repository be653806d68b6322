"""Leaves an executor with the light client only: the extras' packages cannot be imported.

Python runs this at the start of each process whose path has this directory.
"""

import sys

EXTRAS = frozenset(
    {
        *("crc32c", "cryptography", "h2", "nats", "prometheus_client", "google", "yaml"),
        *("starlette", "uvicorn", "uvloop", "rich", "typer", "pandas", "numpy", "grpc"),
        *("deltalake", "fastavro", "pyiceberg", "kazoo", "sqlalchemy"),
    }
)


class NotInstalled:
    """Finds no package of the extras."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Reject those packages, and leave others to the next finder."""
        del path, target
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}: not for executors", name=name)


sys.meta_path.insert(0, NotInstalled)
