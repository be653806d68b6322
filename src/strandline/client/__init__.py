"""The Python client: create streams, append, read as Arrow, subscribe.

Needs msgspec and pyarrow only, so that a Spark executor or a notebook installs nothing else. Talks
to brokers through ``protocol`` alone and does not depend on the server's packages.

The asynchronous client is loaded on first use: asyncio is a third of the import time, and Spark
starts a process for each query.
"""

import importlib
from typing import TYPE_CHECKING, Any

from strandline.client.client import Client, connect
from strandline.client.consumer.consumer import Consumer
from strandline.client.producer.producer import Producer
from strandline.client.reader.results import Ack, BatchAck, Record
from strandline.client.reader.subscription import Subscription

if TYPE_CHECKING:
    from strandline.client.aio import AsyncClient, connect_async

__all__ = [
    "Ack",
    "AsyncClient",
    "BatchAck",
    "Client",
    "Consumer",
    "Producer",
    "Record",
    "Subscription",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> Any:
    """Load the asynchronous client on first use."""
    if name in ("AsyncClient", "connect_async"):
        return getattr(importlib.import_module("strandline.client.aio"), name)
    raise AttributeError(f"module 'strandline.client' has no attribute {name!r}")
