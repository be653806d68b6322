"""The output streams of pipelines: created if missing, with the replication of their input.

Rules: an output gets as many replicas as its input, or fewer if its cluster has fewer brokers, and
the same minimum of in-sync replicas. An existing stream is not changed. If a pipeline is rejected,
the streams that were created for it are deleted. Must not know Spark.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

from strandline.api.admin import StreamInfo
from strandline.client import Client
from strandline.errors import StreamExistsError, UnknownStreamError
from strandline.spark.connection import identity_of, with_retries

_RETRY_TIMEOUT_MS = 60_000
_made: ContextVar[list[tuple[str, StreamInfo]] | None] = ContextVar("made", default=None)
"""The outputs created for the pipeline that is being started."""


@contextlib.contextmanager
def removed_if_refused() -> Iterator[None]:
    """Delete the outputs created in this context if it raises, except those with records."""
    made: list[tuple[str, StreamInfo]] = []
    token = _made.set(made)
    try:
        yield
    except BaseException:
        for server, info in made:
            with_retries(server, partial(_delete, info), timeout_ms=_RETRY_TIMEOUT_MS)
        raise
    finally:
        _made.reset(token)


def _delete(created: StreamInfo, client: Client) -> None:
    """Delete a stream unless it is gone, was recreated, or has records."""
    with contextlib.suppress(UnknownStreamError):
        now = client.stream_info(created.name)
        is_empty = all(each.log_end_offset == 0 for each in now.partitions)
        if is_empty and identity_of(now) == identity_of(created):
            client.delete_stream(created.name)


def stream_of(server: str, name: str) -> StreamInfo:
    """Return a stream.

    Raises:
        UnknownStreamError: there is no such stream.
    """
    return with_retries(
        server, lambda client: client.stream_info(name), timeout_ms=_RETRY_TIMEOUT_MS
    )


def ensure_stream(server: str, name: str, *, like: StreamInfo, **settings: Any) -> str:
    """Create a stream if it does not exist; return its identity.

    Args:
        server: the address of the stream's broker.
        name: the name of the stream.
        like: the input stream, from which the number of replicas is taken.
        **settings: other settings of the stream.
    """
    made = _made.get()

    def create(client: Client) -> StreamInfo:
        # A mirror's output may be in a smaller cluster, or at a single broker.
        replicas = min(like.config.replicas, max(1, len(client.server_info().brokers)))
        copies = {"replicas": replicas, "min_isr": min(like.config.min_isr, replicas)}
        with contextlib.suppress(StreamExistsError):
            info = client.create_stream(name, **copies | settings)
            if made is not None:
                made.append((server, info))
            return info
        return client.stream_info(name)

    return identity_of(with_retries(server, create, timeout_ms=_RETRY_TIMEOUT_MS))
