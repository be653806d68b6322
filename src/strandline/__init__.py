"""Strandline: a lightweight, durable log for NATS subjects, read back as Arrow.

    import strandline
    client = strandline.connect("127.0.0.1:9293")

Importing this module is cheap: each name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from strandline.version import __version__

if TYPE_CHECKING:
    from strandline import errors
    from strandline.client.aio import connect_async
    from strandline.client.client import connect
    from strandline.spark.tables.live import table

__all__ = ["__version__", "connect", "connect_async", "errors", "table"]

_HOMES = {
    "connect": "strandline.client.client",
    "connect_async": "strandline.client.aio",
    "table": "strandline.spark.tables.live",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("errors", "testing"):
        return importlib.import_module(f"strandline.{name}")
    raise AttributeError(f"module 'strandline' has no attribute {name!r}")
