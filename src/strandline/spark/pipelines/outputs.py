"""The streams that pipelines write: made if they are not there, as safe as what they are made of.

Rules: an output gets the copies of its input, as far as its cluster has brokers, and asks for as
many in sync; a stream that is there stays as it is. Must not know Spark.
"""

import contextlib
from typing import Any

from strandline.client import Client
from strandline.errors import StreamExistsError
from strandline.protocol.admin import StreamInfo
from strandline.spark.connection import identity_of, with_retries

_RETRY_TIMEOUT_MS = 60_000


def stream_of(server: str, name: str) -> StreamInfo:
    """A stream as it is.

    Raises:
        UnknownStreamError: there is no such stream.
    """
    return with_retries(
        server, lambda client: client.stream_info(name), timeout_ms=_RETRY_TIMEOUT_MS
    )


def ensure_stream(server: str, name: str, *, like: StreamInfo, **settings: Any) -> str:
    """Create a stream if there is none of this name; returns its identity.

    Args:
        server: where it belongs.
        name: of the stream.
        like: what it is made of; its copies are as many.
        **settings: others of the stream.
    """

    def create(client: Client) -> StreamInfo:
        # The output of a mirror may belong to a smaller cluster, or to a broker alone.
        replicas = min(like.config.replicas, max(1, len(client.server_info().brokers)))
        copies = {"replicas": replicas, "min_isr": min(like.config.min_isr, replicas)}
        with contextlib.suppress(StreamExistsError):
            return client.create_stream(name, **copies | settings)
        return client.stream_info(name)

    return identity_of(with_retries(server, create, timeout_ms=_RETRY_TIMEOUT_MS))
