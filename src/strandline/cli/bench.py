"""``strandline bench``: three quick measurements through the Python client.

Rules: every result includes the settings of the measurement. This is for a first look at a machine:
``benchmarks/`` has curves, other systems and native load generators.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    print_json,
    print_line,
    progress,
    reports_errors,
)
from strandline.cli.parsing import parse_size

if TYPE_CHECKING:
    from strandline.client.client import Client

app = typer.Typer(no_args_is_help=True, help="Measure this machine briefly through the client.")

APPEND_CHUNK = 10_000
MIB = 1 << 20

SizeOption = Annotated[
    int, typer.Option(parser=parse_size, metavar="SIZE", help="Size of each value.")
]
RecordsOption = Annotated[int, typer.Option(help="Number of records.", min=1)]
AcksOption = Annotated[Literal["memory", "disk"], typer.Option(help="Ack level of the stream.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the stream afterwards.")]


@app.command(
    epilog=examples("strandline bench append", "strandline bench append --size 100 --acks memory")
)
@reports_errors
def append(
    *,
    records: RecordsOption = 200_000,
    size: SizeOption = 2048,
    partitions: Annotated[int, typer.Option(help="Number of partitions.", min=1)] = 1,
    acks: AcksOption = "disk",
    keep: KeepOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Append through one producer until all records are acknowledged."""
    import strandline

    with (
        strandline.connect(server) as client,
        _stream(client, partitions=partitions, acks=acks, keep=keep) as name,
    ):
        seconds = _fill(client, name, records=records, size=size)
    _report(
        "append",
        {
            "records": records,
            "value_bytes": size,
            "partitions": partitions,
            "acks": acks,
            "seconds": round(seconds, 3),
            "records_per_s": round(records / seconds),
            "mib_per_s": round(records * size / MIB / seconds, 1),
        },
        output,
    )


@app.command(epilog=examples("strandline bench read", "strandline bench read --stream orders"))
@reports_errors
def read(
    *,
    stream: Annotated[
        str | None, typer.Option(help="The stream to read.", show_default="a new one, filled first")
    ] = None,
    records: RecordsOption = 500_000,
    size: SizeOption = 2048,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Read a whole stream as Arrow once, including values."""
    import strandline

    with strandline.connect(server) as client:
        if stream is not None:
            figures = _read_all(client, stream)
        else:
            with _stream(client, partitions=1, acks="memory", keep=False) as name:
                _fill(client, name, records=records, size=size)
                figures = _read_all(client, name)
    _report("read", figures, output)


@app.command(epilog=examples("strandline bench latency", "strandline bench latency --acks memory"))
@reports_errors
def latency(
    *,
    records: RecordsOption = 2000,
    size: SizeOption = 2048,
    acks: AcksOption = "disk",
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Append one record at a time and wait for each ack."""
    import strandline

    value = secrets.token_bytes(size)
    taken: list[float] = []
    with (
        strandline.connect(server) as client,
        _stream(client, partitions=1, acks=acks, keep=False) as name,
        progress("appending one by one", records) as advance,
    ):
        for _ in range(records):
            started = time.perf_counter()
            client.append(name, value)
            taken.append(time.perf_counter() - started)
            advance(1)
    taken.sort()
    quantiles = {
        f"p{percent}_ms": round(1000 * taken[int(records * percent / 100)], 3)
        for percent in (50, 90, 99)
    }
    quantiles["max_ms"] = round(1000 * taken[-1], 3)
    _report(
        "latency",
        {"records": records, "value_bytes": size, "acks": acks, **quantiles},
        output,
    )


@contextmanager
def _stream(client: "Client", *, partitions: int, acks: str, keep: bool) -> Iterator[str]:
    """Create a stream for a measurement, and delete it afterwards unless ``keep``."""
    name = f"bench-{secrets.token_hex(4)}"
    client.create_stream(name, subject=name, partitions=partitions, acks=acks)
    try:
        yield name
    finally:
        if not keep:
            client.delete_stream(name)


def _fill(client: "Client", name: str, *, records: int, size: int) -> float:
    """Append ``records`` values; return the seconds until the last ack."""
    value = secrets.token_bytes(size)
    with progress("appending", records) as advance:
        started = time.perf_counter()
        with client.producer(name) as producer:
            for first in range(0, records, APPEND_CHUNK):
                count = min(APPEND_CHUNK, records - first)
                for _ in range(count):
                    producer.append(value)
                advance(count)
        return time.perf_counter() - started


def _read_all(client: "Client", name: str) -> dict[str, Any]:
    info = client.stream_info(name)
    total = sum(part.records for part in info.partitions)
    records = size_bytes = 0
    with progress("reading", total) as advance:
        started = time.perf_counter()
        for batch in client.read(name):
            records += batch.num_rows
            size_bytes += batch.nbytes
            advance(batch.num_rows)
        seconds = time.perf_counter() - started
    return {
        "records": records,
        "arrow_bytes": size_bytes,
        "partitions": len(info.partitions),
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
        "mib_per_s": round(size_bytes / MIB / seconds, 1),
    }


def _report(name: str, figures: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.json:
        print_json({"bench": name, **figures})
        return
    print_line(name)
    for key, value in figures.items():
        text = f"{value:,}" if isinstance(value, int | float) else value
        print_line(f"  {key:14} {text}")
