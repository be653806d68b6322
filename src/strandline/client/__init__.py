"""The Python client: create streams, append, read as Arrow, subscribe.

Needs msgspec and pyarrow only, so that a Spark executor or a notebook installs nothing else. It
talks to a broker through ``protocol`` alone and knows nothing of the broker's inside.
"""

from strandline.client.aio import AsyncClient, connect_async
from strandline.client.client import Client, connect
from strandline.client.consumer import Consumer
from strandline.client.producer import Producer
from strandline.client.results import Ack, BatchAck, Record
from strandline.client.subscription import Subscription

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
