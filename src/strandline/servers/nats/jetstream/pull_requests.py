"""The bodies of pulls: how many records a client wants, and how long it waits. Pure."""

from typing import Final

import msgspec

from strandline.core.consumers.pulls import Pull
from strandline.errors import UNDECODABLE
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.integers import Int64
from strandline.servers.nats.jetstream.times import NS_PER_MS, ms_of

BATCH_MAX: Final = 1 << 20


class _NextRequest(msgspec.Struct, frozen=True):
    batch: Int64 | None = None
    expires: Int64 | None = None
    no_wait: bool | None = None
    max_bytes: Int64 | None = None
    idle_heartbeat: Int64 | None = None


def parse_pull(
    config: ConsumerConfig, token: object, payload: bytes, *, now_ms: float
) -> Pull | str:
    """Parse the body of a pull; return the status that rejects it if it is invalid.

    Args:
        config: the consumer's settings.
        token: the pull's token.
        payload: the body.
        now_ms: the present time.
    """
    if config.is_push:
        return "409 Consumer is push based"
    text = payload.strip()
    body = _NextRequest()
    if text.startswith(b"{"):
        try:
            body = msgspec.json.decode(text, type=_NextRequest)
        except UNDECODABLE as error:
            return f"400 Bad Request - {error}".replace("\r", " ").replace("\n", " ")
    elif text.isdigit() and len(text) < 10:
        body = _NextRequest(batch=int(text))
    batch, expires = max(1, body.batch or 1), max(0, body.expires or 0)
    bytes_max, beat = max(0, body.max_bytes or 0), max(0, body.idle_heartbeat or 0)
    if beat * 2 > expires:
        return "400 Bad Request - heartbeat value too large"
    if batch > min(config.max_batch or BATCH_MAX, BATCH_MAX):
        return f"409 Exceeded MaxRequestBatch of {config.max_batch or BATCH_MAX}"
    if config.max_expires and expires > config.max_expires:
        return f"409 Exceeded MaxRequestExpires of {config.max_expires / 1e9:g}s"
    if config.max_bytes and bytes_max > config.max_bytes:
        return f"409 Exceeded MaxRequestMaxBytes of {config.max_bytes}"
    return Pull(
        token,
        batch=batch,
        expires_ms=now_ms + expires / NS_PER_MS if expires else None,
        no_wait=bool(body.no_wait),
        bytes_max=bytes_max,
        heartbeat_ms=ms_of(beat),
    )
