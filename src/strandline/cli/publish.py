"""``strandline publish``: append records from an argument, a file or standard input."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from strandline.cli.completion import stream_names
from strandline.cli.output import (
    SERVER_DEFAULT,
    Advance,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    print_done,
    progress,
    reports_errors,
)
from strandline.cli.parsing import naming, parse_header
from strandline.errors import SchemaMismatchError, StrandlineError, UnavailableError

if TYPE_CHECKING:
    from strandline.api.admin import StreamInfo
    from strandline.client.reader.results import Ack, AckFuture

EPILOG = examples(
    "strandline publish orders 'one espresso' --key table-7 --header lang=en",
    "strandline publish orders --file order.json --subject orders.paris",
    "seq 1000 | strandline publish orders          # a record per line",
)
REPORT_EVERY = 1000
WAITING_MAX = 100_000
"""The limit of unacknowledged records; the producer's buffer is full before it is reached."""


@reports_errors
def publish(
    *,
    stream: Annotated[
        str,
        typer.Argument(
            metavar="STREAM", help="The stream to append to.", autocompletion=stream_names
        ),
    ],
    value: Annotated[
        str | None,
        typer.Argument(metavar="[VALUE]", help="A record's value; by default lines of stdin."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="File whose bytes are one record.", exists=True, dir_okay=False),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(help="File with one record per line.", exists=True, dir_okay=False),
    ] = None,
    tombstone: Annotated[
        bool,
        typer.Option("--tombstone", help="Publish a null value; compaction then deletes the key."),
    ] = False,
    subject: Annotated[
        str | None,
        typer.Option(
            help="Subject of the records.", show_default="the stream's, with _ for wildcards"
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of the records.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; repeat for more.")
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(help="Nats-Msg-Id, which deduplicates repeats in the same partition."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(help="Number of the partition.", show_default="by the stream's rule", min=0),
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Append records to a stream and wait for their acks.

    Records are sent to the broker over Arrow Flight. Any NATS client can publish, too.
    """
    import strandline
    from strandline.without_pandas import keep_pandas_out

    if sum(source is not None for source in (value, file, lines)) + tombstone > 1:
        raise typer.BadParameter("give one of VALUE, --file, --lines and --tombstone")
    if tombstone and key is None:
        raise typer.BadParameter("--tombstone deletes a key; give --key")
    is_one = value is not None or file is not None or tombstone
    if message_id is not None and not is_one:
        raise typer.BadParameter("--message-id names one record; give VALUE or --file")
    with naming("--header"):
        headers = [parse_header(text) for text in header or ()]
    keep_pandas_out()
    with strandline.connect(server) as client, client.producer(stream) as producer:
        if subject is not None:
            _check_subject(subject, client.stream_info(stream, of_leaders=False))

        def append(record: bytes | None) -> "AckFuture[Ack]":
            return producer.append(
                record,
                key=key,
                subject=subject,
                headers=headers,
                partition=partition,
                message_id=message_id,
            )

        if is_one:
            given = None if value is None else value.encode()
            record = file.read_bytes() if file is not None else given
            result = append(record).result()
            _print_one(stream, result, output)
            return
        with progress("publishing", None) as advance:
            count = _publish_lines(_lines(lines), append, advance)
    text = f"{count:,} records were appended to {stream}"
    print_done(text, {"stream": stream, "records": count}, output=output)


def _publish_lines(
    lines: Iterator[bytes], append: Callable[[bytes], "AckFuture[Ack]"], advance: Advance
) -> int:
    """Append each line as a record and wait for all acks; return the number of records.

    Raises:
        StrandlineError: a record was rejected, or may not have been stored. The message has the
            line and the number of records stored; later lines are not read.
    """
    waiting: deque[AckFuture[Ack]] = deque()
    count = stored = 0
    failed: tuple[int, StrandlineError] | None = None

    def settle() -> None:
        """Wait for the oldest outcome."""
        nonlocal stored, failed
        number = count - len(waiting) + 1
        try:
            waiting.popleft().result()
            stored += 1
        except StrandlineError as error:
            # A batch is rejected as a whole, so its first lines may fail because of a later one.
            if failed is None or (_is_of_another(failed[1]) and not _is_of_another(error)):
                failed = (number, error)

    for record in lines:
        try:
            waiting.append(append(record))
        except StrandlineError as error:
            failed = (count + 1, error)
            break
        count += 1
        if count % REPORT_EVERY == 0:
            advance(REPORT_EVERY)
        while waiting and (waiting[0].done() or len(waiting) > WAITING_MAX):
            settle()
        if failed is not None:
            break
    while waiting:
        settle()
    advance(count % REPORT_EVERY)
    if failed is None:
        return count
    number, reason = failed
    reason.args = (f"line {number}: {reason.message}; records stored: {stored:,}",)
    raise reason


def _is_of_another(error: StrandlineError) -> bool:
    """Return whether a record was rejected only because of another record in its batch."""
    return isinstance(error, SchemaMismatchError) and error.row is not None


def _check_subject(subject: str, stream: "StreamInfo") -> None:
    """Reject a subject that the stream would not store if it were published over NATS.

    Raises:
        InvalidSubjectError: the subject does not match the stream's.
    """
    from strandline.errors import InvalidSubjectError
    from strandline.record.subjects import subject_matches

    rest, _, last = subject.rpartition(".")
    is_suffixed = stream.config.partition_rule == "suffix" and last.isdigit()
    if subject_matches(stream.subject, subject) or (
        is_suffixed and subject_matches(stream.subject, rest)
    ):
        return
    raise InvalidSubjectError(
        f"subject '{subject}' does not match '{stream.subject}' of stream '{stream.name}'; "
        "give one that matches, or another stream"
    )


def _print_one(stream: str, ack: "Ack", output: OutputFormat) -> None:
    place = {"partition": ack.partition, "offset": ack.offset, "duplicate": ack.duplicate}
    known = ", stored earlier" if ack.duplicate else ""
    text = f"{stream}/{ack.partition} offset {ack.offset}{known}"
    print_done(text, {"stream": stream, **place}, output=output)


def _lines(file: Path | None) -> Iterator[bytes]:
    """Yield the lines of a file or of standard input, without line feeds.

    Raises:
        UnavailableError: the file cannot be read.
    """
    source: BinaryIO = file.open("rb") if file is not None else sys.stdin.buffer
    try:
        with source:
            for line in source:
                yield line.removesuffix(b"\n")
    except OSError as error:
        place = "standard input" if file is None else repr(str(file))
        raise UnavailableError(
            f"cannot read {place}: {error.strerror}; give VALUE, --file or --lines"
        ) from error
