"""The Python client: create streams, append, read as Arrow, subscribe.

Needs only msgspec and pyarrow, so that a Spark executor or a notebook installs nothing else. Talks
to brokers through ``api`` alone and does not depend on the server's packages.

Each name is loaded when it is first used, since Spark starts a process for each query, and a broker
without a cluster needs only the client's return values.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client.aio import AsyncClient, connect_async
    from strandline.client.client import Client, connect
    from strandline.client.consumer.consumer import Consumer
    from strandline.client.producer.producer import Producer
    from strandline.client.reader.results import Ack, BatchAck, Record
    from strandline.client.reader.subscription import Subscription

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

_MODULES = {
    "Ack": "reader.results",
    "AsyncClient": "aio",
    "BatchAck": "reader.results",
    "Client": "client",
    "Consumer": "consumer.consumer",
    "Producer": "producer.producer",
    "Record": "reader.results",
    "Subscription": "reader.subscription",
    "connect": "client",
    "connect_async": "aio",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"strandline.client.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'strandline.client' has no attribute {name!r}")
