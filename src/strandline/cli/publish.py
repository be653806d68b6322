"""``strandline publish``: records from an argument, a file or standard input."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    print_done,
    progress,
    reports_errors,
)
from strandline.cli.values import parse_header

if TYPE_CHECKING:
    from strandline.client.results import Ack, AckFuture
    from strandline.protocol.admin import StreamInfo

EPILOG = examples(
    "strandline publish orders 'one espresso' --key table-7 --header lang=en",
    "strandline publish orders --file order.json --subject orders.paris",
    "seq 1000 | strandline publish orders          # a record per line",
)
REPORT_EVERY = 1000


@reports_errors
def publish(
    *,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to append to.")],
    value: Annotated[
        str | None,
        typer.Argument(metavar="[VALUE]", help="The record; none reads lines from stdin."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="One record: the bytes of this file.", exists=True, dir_okay=False),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(help="A record per line of this file.", exists=True, dir_okay=False),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(help="Subject to store.", show_default="the stream's, _ for wildcards"),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of the record or records.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; repeat for more.")
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(help="Nats-Msg-Id of the one record: repeats are stored once."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(help="Which partition.", show_default="by the stream's rule", min=0),
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Append records to a stream and wait until they are as safe as the stream promises.

    This goes over Arrow Flight, straight to the broker. Any NATS client can publish too.
    """
    import strandline

    if sum(source is not None for source in (value, file, lines)) > 1:
        raise typer.BadParameter("give one of VALUE, --file and --lines")
    if message_id is not None and value is None and file is None:
        raise typer.BadParameter("--message-id names one record; give VALUE or --file")
    headers = [parse_header(text) for text in header or ()]
    with strandline.connect(server) as client, client.producer(stream) as producer:
        if subject is not None:
            _check_subject(subject, client.stream_info(stream))

        def append(record: bytes) -> "AckFuture[Ack]":
            return producer.append(
                record,
                key=key,
                subject=subject,
                headers=headers,
                partition=partition,
                message_id=message_id,
            )

        if value is not None or file is not None:
            record = file.read_bytes() if file is not None else (value or "").encode()
            result = append(record).result()
            _print_one(stream, result, output)
            return
        records = _lines(lines)
        with progress("publishing", None) as advance:
            count = 0
            for record in records:
                append(record)
                count += 1
                if count % REPORT_EVERY == 0:
                    advance(REPORT_EVERY)
            producer.flush()
            advance(count % REPORT_EVERY)
    text = f"{count:,} records are in {stream}, as safe as it promises"
    print_done(text, {"stream": stream, "records": count}, output=output)


def _check_subject(subject: str, stream: "StreamInfo") -> None:
    """Refuse a subject that the stream would not store if it were published through NATS.

    Raises:
        InvalidSubjectError: it is another, or none at all.
    """
    from strandline.errors import InvalidSubjectError
    from strandline.record.subjects import subject_matches, validate_subject

    validate_subject(subject)
    rest, _, last = subject.rpartition(".")
    is_suffixed = stream.config.partition_rule == "suffix" and last.isdigit()
    if subject_matches(stream.subject, subject) or (
        is_suffixed and subject_matches(stream.subject, rest)
    ):
        return
    raise InvalidSubjectError(
        f"stream '{stream.name}' stores '{stream.subject}', not '{subject}': give a subject that "
        "matches, or another stream"
    )


def _print_one(stream: str, ack: "Ack", output: OutputFormat) -> None:
    place = {"partition": ack.partition, "offset": ack.offset, "duplicate": ack.duplicate}
    known = ", stored earlier" if ack.duplicate else ""
    text = f"{stream}/{ack.partition} offset {ack.offset}{known}"
    print_done(text, {"stream": stream, **place}, output=output)


def _lines(file: Path | None) -> Iterator[bytes]:
    """Lines without their ends, from the file or from standard input."""
    source: BinaryIO = file.open("rb") if file is not None else sys.stdin.buffer
    with source:
        for line in source:
            yield line.rstrip(b"\r\n")
