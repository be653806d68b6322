"""The ceiling: a bare pyarrow Flight server that sends record batches it has in memory.

The batches are those that Strandline delivers, read once at the start; the server does nothing but
hand them to Flight (`RecordBatchStream`, so no Python runs per batch), and the client nothing but
take them. What Strandline does not reach of this, its own code costs; what this does not reach,
gRPC and Arrow cost.

Run as a program it is that server: `python -m benchmarks.sources.bare_flight HOST:PORT STREAM`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from benchmarks.peers.process import LOOPBACK, fresh_dir, server, wait_for_line
from benchmarks.peers.system import Place
from benchmarks.sources.source import MIB, Pass
from benchmarks.sources.strandline import STREAM, StrandlineSource

LABEL: Final = "ceiling: bare Flight, batches in memory"
HELD_BYTES_MAX: Final = 1024 * MIB
MESSAGE_BYTES_MAX: Final = 256 * MIB
START_TIMEOUT_S: Final = 120.0


class BareServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Sends the same batches whatever the ticket."""

    def __init__(self, schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
        super().__init__(f"grpc+tcp://{LOOPBACK}:0")
        self._table = pa.Table.from_batches(batches, schema)

    def do_get(self, _context: Any, _ticket: Any) -> Any:
        """All of them."""
        return fl.RecordBatchStream(self._table)


@dataclass(frozen=True)
class BareFlight:
    """The bare server, running."""

    client: fl.FlightClient
    records: int
    pid: int
    label: str = LABEL

    @property
    def version(self) -> str:
        """Arrow's."""
        return f"pyarrow {pa.__version__}"

    def read(self, seconds_max: float) -> Pass:
        """One pass with the plain Flight client."""
        records = value_bytes = 0
        started = time.perf_counter()
        stream = self.client.do_get(fl.Ticket(b""))
        with contextlib.suppress(StopIteration):
            while time.perf_counter() - started < seconds_max:
                batch = stream.read_chunk().data
                records += batch.num_rows
                value_bytes += batch.column("value").nbytes - 4 * (batch.num_rows + 1)
        seconds = time.perf_counter() - started
        stream.cancel()
        return Pass(records, value_bytes, seconds)


@contextlib.contextmanager
def open_bare_flight(place: Place, of: StrandlineSource) -> Iterator[BareFlight]:
    """A bare server that holds the beginning of what `of` delivers."""
    words = [*place.server_prefix, sys.executable, "-m", __name__, of.broker.address, STREAM]
    with fresh_dir(place.data_root, "bare") as folder:
        log = folder / "server.log"
        with server(words, log) as process:
            line = wait_for_line(process, log, "{", timeout_s=START_TIMEOUT_S)
            ready = json.loads(line)
            address = f"grpc+tcp://{LOOPBACK}:{ready['port']}"
            options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
            with fl.FlightClient(address, generic_options=options) as client:
                yield BareFlight(client, ready["records"], process.pid)


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch in memory of its own, so that nothing of the message it came in stays."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def main() -> None:
    """Reads the stream into memory and serves it until it is ended."""
    import strandline

    address, stream = sys.argv[1:]
    batches: list[pa.RecordBatch] = []
    held = 0
    with strandline.connect(address) as client, client.read(stream) as reader:
        for batch in reader:
            batches.append(copied(batch))
            held += batch.nbytes
            if held >= HELD_BYTES_MAX:
                break
        bare = BareServer(reader.schema, batches)
    records = sum(batch.num_rows for batch in batches)
    print(json.dumps({"port": bare.port, "records": records}), flush=True)
    bare.serve()


if __name__ == "__main__":
    main()
