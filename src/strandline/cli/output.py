"""Output of commands, as text or JSON.

Rules: with ``--output json`` every line on standard output is one JSON document. An error is one
    line
on standard error in both formats, with the stable code from docs/errors.md. Names and values come
from other users: characters that could control a terminal are escaped here, wherever they are
printed.
"""

import contextlib
import functools
import inspect
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from strandline.errors import (
    InvalidConfigError,
    InvalidRequestError,
    StrandlineError,
    UnavailableError,
)
from strandline.optional_dependencies import install_hint
from strandline.process.logs import TEXT_FORMAT, JsonFormatter

EXIT_ERROR = 1
GAP = "  "
"""The space between columns of a table."""
TEXT_WIDTH_MIN = 8
Command = TypeVar("Command", bound=Callable[..., None])
Advance = Callable[[int], None]
T = TypeVar("T")


class OutputFormat(StrEnum):
    """The format of a command's output."""

    text = "text"
    json = "json"


OutputOption = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="Output format."),
]
ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        "-s",
        envvar="STRANDLINE_SERVER",
        metavar="HOST:PORT",
        help="The broker's Arrow Flight address.",
    ),
]
SERVER_DEFAULT = "127.0.0.1:9293"
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def is_asked(output: OutputFormat, *, yes: bool) -> bool:
    """Return whether to ask for confirmation: only at a terminal and without ``--yes``."""
    return not yes and sys.stdin.isatty() and output is OutputFormat.text


def examples(*lines: str) -> str:
    """Format the examples at the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def print_json(value: object) -> None:
    """Print one JSON document on one line."""
    text = msgspec.json.encode(value).decode()
    # JSON allows U+202E or U+009B unescaped in strings; outside of strings there are none.
    _print(_escaped(text, lambda char: json.dumps(char)[1:-1]))


def print_line(text: str) -> None:
    """Print text on standard output, with a line end."""
    _print(_lines(text))


def _print(text: str) -> None:
    with writing_output():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class OutputError(Exception):
    """An error in writing to standard output or error; the cause is an ``OSError``."""


@contextmanager
def writing_output() -> Iterator[None]:
    """Tell errors of standard output from those of files and connections.

    Raises:
        OutputError: the block, which does nothing else than write to it, raised an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise OutputError from error


def print_done(text: str, document: object, *, output: OutputFormat) -> None:
    """Print a command's result: a line of text, or a document."""
    if output is OutputFormat.json:
        print_json(document)
    else:
        print_line(text)


def print_list(
    found: Iterable[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    output: OutputFormat,
) -> None:
    """Print a command's list: a table, or a document per item."""
    if output is OutputFormat.json:
        for each in found:
            print_json(each)
    else:
        print_table(columns, map(row, found))


def note(text: str) -> None:
    """Print one line on standard error, separate from the results."""
    with writing_output():
        sys.stderr.write(_lines(text) + "\n")
        sys.stderr.flush()


def escaped(text: str) -> str:
    """Return text with escapes for line ends and for what could control a terminal."""
    return _escaped(text, lambda char: repr(char)[1:-1])


def _lines(text: str) -> str:
    return "\n".join(map(escaped, text.split("\n")))


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else escape(char) for char in text)


@contextmanager
def logged_to_stderr(output: OutputFormat) -> Iterator[None]:
    """Print the log on standard error: only messages at a terminal, full log lines elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    if output is OutputFormat.json:
        handler.setFormatter(JsonFormatter())
    elif not sys.stderr.isatty():
        handler.setFormatter(logging.Formatter(TEXT_FORMAT))
    ours = logging.getLogger("strandline")
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.setLevel(level)
        ours.removeHandler(handler)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print an aligned table; a column whose name begins with # is numeric.

    The table is plain text without borders or colours. If a terminal is too narrow, the longest
    texts are cut, but never numbers; in a pipe nothing is cut.
    """
    heads = [name.removeprefix("#").upper() for name in columns]
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    if sys.stdout.isatty():
        texts = [place for place, name in enumerate(columns) if not name.startswith("#")]
        _narrow(widths, texts, shutil.get_terminal_size().columns)
    lines = []
    for line in (heads, *cells):
        parts = [
            text.rjust(width) if name.startswith("#") else _cut(text, width).ljust(width)
            for name, text, width in zip(columns, line, widths, strict=True)
        ]
        lines.append(GAP.join(parts).rstrip())
    print_line("\n".join(lines))


def _narrow(widths: list[int], texts: Sequence[int], room: int) -> None:
    """Make the widest text columns narrower until the table fits, if possible."""
    while sum(widths) + len(GAP) * (len(widths) - 1) > room:
        widest = max(texts, key=lambda place: widths[place], default=None)
        if widest is None or widths[widest] <= TEXT_WIDTH_MIN:
            return
        widths[widest] -= 1


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def print_error(error: StrandlineError, output: OutputFormat) -> None:
    """Print an error as one line or as JSON."""
    if output is OutputFormat.json:
        report = {"error": error.code, "message": error.message, "retriable": error.retriable}
        note(msgspec.json.encode(report).decode())
    else:
        note(f"error: {error.message} ({error.code})")


def reports_errors(command: Command) -> Command:
    """Make a command print its errors as one line and exit with code 1.

    This covers ``StrandlineError``, and errors of files, output and arguments. A bug keeps its
    traceback.
    """

    @functools.wraps(command)
    def run(*args: Any, output: OutputFormat = OutputFormat.text, **kwargs: Any) -> None:
        try:
            command(*args, output=output, **kwargs)
        except StrandlineError as error:
            print_error(error, output)
            raise typer.Exit(EXIT_ERROR) from error
        except ModuleNotFoundError as error:
            print_error(_not_installed(error), output)
            raise typer.Exit(EXIT_ERROR) from error
        except UnicodeEncodeError as error:
            print_error(_not_encodable(error), output)
            raise typer.Exit(EXIT_ERROR) from error
        except OutputError as error:
            _forget_output()
            if isinstance(error.__cause__, BrokenPipeError):
                return  # the reader of a pipe has ended, for example `head`
            print_error(_of_system("cannot use standard output", error.__cause__), output)
            raise typer.Exit(EXIT_ERROR) from error
        except OSError as error:
            what = "a call of the operating system failed"
            if error.filename is not None:
                what = f"cannot use {error.filename!r}"
            print_error(_of_system(what, error), output)
            raise typer.Exit(EXIT_ERROR) from error

    # In all paragraphs of the help but the first, Typer keeps the line breaks of the source.
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    return run  # type: ignore[return-value] # functools.wraps keeps the signature


def _of_system(what: str, error: BaseException | None) -> StrandlineError:
    return UnavailableError(f"{what}: {getattr(error, 'strerror', None) or error}")


def _forget_output() -> None:
    """Redirect standard output to nothing; otherwise Python's flush at exit would fail."""
    with contextlib.suppress(OSError):  # in tests it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _not_encodable(error: UnicodeEncodeError) -> StrandlineError:
    """Return the error for text that cannot be encoded, in an argument or in the output."""
    text = error.object[max(error.start - 20, 0) : error.end + 20]
    if any("\ud800" <= letter <= "\udfff" for letter in error.object[error.start : error.end]):
        return InvalidRequestError(f"an argument is not UTF-8: {text!a}")
    return InvalidConfigError(
        f"{text!a} cannot be encoded as {error.encoding}: set PYTHONUTF8=1, or another locale"
    )


def _not_installed(error: ModuleNotFoundError) -> StrandlineError:
    """Return the error for a missing third-party package; a missing module here is a bug."""
    package = (error.name or "strandline").partition(".")[0]
    if package.startswith(("strandline", "pyspark_strandline")):
        raise error
    return InvalidConfigError(install_hint(error))


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "records") -> Iterator[Advance]:
    """Show a progress bar on standard error while the block runs.

    Args:
        title: the task to show.
        total: the number of units; None if unknown.
        unit: the name of the units; ``bytes`` are shown in binary units.

    Yields:
        A function to call with the number of units done since its last call.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    counts: list[ProgressColumn] = (
        [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        if unit == "bytes"
        else [MofNCompleteColumn(), TextColumn(unit)]
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        note(f"{title} ...")
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeElapsedColumn())
    # Otherwise Rich would print standard output, which has the results, on this console.
    with Progress(
        *columns, console=console, disable=not console.is_terminal, redirect_stdout=False
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return escaped(str(value))
