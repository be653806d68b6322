"""The streams that pipelines write: made if they are not there, as safe as what they are made of.

Rules: an output gets the copies of its input, as far as its cluster has brokers, and asks for as
many in sync; a stream that is there stays as it is, and one that was made for a pipeline which is
then refused is removed. Must not know Spark.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

from strandline.client import Client
from strandline.errors import StreamExistsError, UnknownStreamError
from strandline.protocol.admin import StreamInfo
from strandline.spark.connection import identity_of, with_retries

_RETRY_TIMEOUT_MS = 60_000
_made: ContextVar[list[tuple[str, StreamInfo]] | None] = ContextVar("made", default=None)
"""The outputs that the pipeline which is being started has created."""


@contextlib.contextmanager
def removed_if_refused() -> Iterator[None]:
    """Delete the outputs created within, if it ends by an error; not those that hold a record."""
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
    """Delete a stream unless it is gone, or another of its name, or somebody wrote to it."""
    with contextlib.suppress(UnknownStreamError):
        now = client.stream_info(created.name)
        is_empty = all(each.log_end_offset == 0 for each in now.partitions)
        if is_empty and identity_of(now) == identity_of(created):
            client.delete_stream(created.name)


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
    made = _made.get()

    def create(client: Client) -> StreamInfo:
        # The output of a mirror may belong to a smaller cluster, or to a broker alone.
        replicas = min(like.config.replicas, max(1, len(client.server_info().brokers)))
        copies = {"replicas": replicas, "min_isr": min(like.config.min_isr, replicas)}
        with contextlib.suppress(StreamExistsError):
            info = client.create_stream(name, **copies | settings)
            if made is not None:
                made.append((server, info))
            return info
        return client.stream_info(name)

    return identity_of(with_retries(server, create, timeout_ms=_RETRY_TIMEOUT_MS))
