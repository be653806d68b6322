"""The broker's log on standard error: one line per event, as text or JSON.

Rules: a JSON line is one object with ``time`` (UTC, milliseconds), ``level``, ``logger`` and
``message``, and ``trace`` if there is an exception; it never contains a line break. With JSON no
other line goes to standard error while the broker runs: lines that libraries write there (such as
gRPC's about failed TLS handshakes) become events of the logger ``stderr``.
"""

import contextlib
import faulthandler
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, TextIO

import msgspec

STDERR = 2
OTHERS = "stderr"
"""The logger for lines that other code writes to standard error."""
LAST_LINES_S = 1.0
LINE_CHARACTERS_MAX = 16 << 10
GLOG_LINE = re.compile(r"([IWEF])\d{4} ")
GLOG_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """A log formatter that writes one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return an event as one line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        # Text from outside may contain surrogates, which are not valid Unicode.
        clean = {key: text.encode(errors="replace").decode() for key, text in fields.items()}
        return msgspec.json.encode(clean).decode()


class _Handler(logging.StreamHandler[TextIO]):
    """A stream handler that reports its own failures, unless standard error itself has failed."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Ignore errors once the reader of standard error has gone: reporting would fail, too."""
        if record.name != OTHERS:
            super().handleError(record)


@contextlib.contextmanager
def logging_to_stderr(level: str, style: Literal["text", "json"]) -> Iterator[None]:
    """Log to standard error; with JSON, capture all other writes to it until the block ends."""
    if style == "text":
        configure_logging(level, style)
        yield
        return
    with _captured_stderr() as stream:
        configure_logging(level, style, stream)
        _log_uncaught_errors()
        yield


def configure_logging(
    level: str, style: Literal["text", "json"], stream: TextIO | None = None
) -> None:
    """Log to standard error, or to another stream, from now on."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


@contextlib.contextmanager
def _captured_stderr() -> Iterator[TextIO]:
    """Log the lines that other code writes to standard error, until the block ends.

    A pipe replaces file descriptor 2, because C libraries write to the descriptor directly. Lines
    still in the pipe when the process is killed are lost.

    Yields:
        the original standard error.
    """
    sys.stderr.flush()
    true = os.fdopen(os.dup(STDERR), "w", encoding="utf-8")  # not closed: exit hooks write to it
    if faulthandler.is_enabled():
        faulthandler.enable(true)  # when the process crashes, nothing reads the pipe any more
    source, sink = os.pipe()
    os.dup2(sink, STDERR)
    os.close(sink)
    reader = threading.Thread(target=_log_lines, args=(source,), name="stderr", daemon=True)
    reader.start()
    try:
        yield true
    finally:
        sys.stderr.flush()
        os.dup2(true.fileno(), STDERR)  # closes the pipe's write end, so that the reader ends
        reader.join(LAST_LINES_S)


def _log_lines(source: int) -> None:
    """Log each line until the pipe is closed."""
    logger = logging.getLogger(OTHERS)
    with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
        while line := lines.readline(LINE_CHARACTERS_MAX):
            if text := line.strip():
                found = GLOG_LINE.match(text)
                logger.log(GLOG_LEVELS[found[1]] if found else logging.WARNING, "%s", text)


def _log_uncaught_errors() -> None:
    """Log an uncaught exception as one event instead of Python's traceback of many lines."""

    def log(error: BaseException | None, trace: TracebackType | None) -> None:
        info = None if error is None else (type(error), error, trace)
        logging.getLogger("strandline").critical("unexpected error", exc_info=info)

    logging.captureWarnings(capture=True)
    sys.excepthook = lambda _, error, trace: log(error, trace)
    sys.unraisablehook = lambda args: log(args.exc_value, args.exc_traceback)
    threading.excepthook = lambda args: log(args.exc_value, args.exc_traceback)
