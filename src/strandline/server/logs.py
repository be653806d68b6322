"""What a broker says on standard error: a line per event, for people or for programs.

Rules: a JSON line is one object with ``time`` (UTC, milliseconds), ``level``, ``logger`` and
``message``, and ``trace`` if an exception is told of; nothing in it can break the line.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import msgspec

TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Makes JSON lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One event as one line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        told = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        # Text that came from outside may hold what is not Unicode.
        clean = {key: text.encode(errors="replace").decode() for key, text in told.items()}
        return msgspec.json.encode(clean).decode()


def configure_logging(level: str, style: Literal["text", "json"]) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
