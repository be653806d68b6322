"""Strandline, read by `strandline.connect(...).read(...)` over Arrow Flight."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks import broker as brokers
from benchmarks.fill import Shape, append_loaded, append_many, end_offset
from benchmarks.peers.system import Place
from benchmarks.sources.source import Pass

if TYPE_CHECKING:
    from strandline.client import Client

LABEL: Final = "Strandline, client.read()"
VALUES_ONLY: Final = "Strandline, columns=['value']"
STREAM: Final = "bench"


@dataclass(frozen=True)
class StrandlineSource:
    """A broker with one filled stream of one partition."""

    broker: brokers.Broker
    client: Client
    records: int
    label: str = LABEL

    @property
    def version(self) -> str:
        """Ours and Arrow's."""
        import pyarrow as pa

        from strandline.version import __version__

        return f"strandline {__version__}, pyarrow {pa.__version__}"

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        return self.broker.pid

    def read(self, seconds_max: float) -> Pass:
        """Every record, all columns."""
        return read_stream(self.client, seconds_max=seconds_max)


@dataclass(frozen=True)
class ValuesOnly:
    """The same broker and stream, read with one column only."""

    of: StrandlineSource
    label: str = VALUES_ONLY

    @property
    def version(self) -> str:
        """As the whole."""
        return self.of.version

    @property
    def records(self) -> int:
        """As the whole."""
        return self.of.records

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        return self.of.pid

    def read(self, seconds_max: float) -> Pass:
        """The value of every record."""
        return read_stream(self.of.client, seconds_max=seconds_max, columns=["value"])


def read_stream(
    client: Client,
    *,
    seconds_max: float,
    columns: Sequence[str] | None = None,
    start: int = 0,
) -> Pass:
    """One pass over the stream, from an offset on.

    The bytes of values are taken from the offsets of each batch's value column: what a program
    that looks at values would have to touch in any case.
    """
    records = value_bytes = 0
    started = time.perf_counter()
    with client.read(STREAM, columns=columns, start=start) as reader:
        for batch in reader:
            records += batch.num_rows
            value_bytes += batch.column("value").nbytes - 4 * (batch.num_rows + 1)
            if time.perf_counter() - started > seconds_max:
                break
    return Pass(records, value_bytes, time.perf_counter() - started)


def fill(broker: brokers.Broker, client: Client, shape: Shape, *, one_by_one: bool) -> int:
    """Creates the stream and appends; how many records it holds then."""
    client.create_stream(STREAM, subject=STREAM, acks="memory" if one_by_one else "disk")
    if one_by_one:
        append_loaded(broker, STREAM, shape, connections=1, appenders=1)
    else:
        append_many(client, STREAM, shape)
    return end_offset(client, STREAM)


@contextlib.contextmanager
def open_strandline_source(
    place: Place, shape: Shape, *, one_by_one: bool = False
) -> Iterator[StrandlineSource]:
    """A fresh broker filled with `shape`."""
    with (
        brokers.fresh(place.data_root, prefix=place.server_prefix) as broker,
        broker.connect() as client,
    ):
        yield StrandlineSource(broker, client, fill(broker, client, shape, one_by_one=one_by_one))
