"""What went wrong on Spark's side of a pipeline, in one line, as an error of ours.

Rules: Spark's messages carry stack traces and plans, and what we raised in its Python processes
comes back as text of that kind. Of such a text the line that a user can act on is kept: our own
error, under its own class; else the last exception of Python; else what Spark says of a value that
SQL cannot take; else what it says first. The rest
stays in Spark's log. Must not know which pipeline it is.
"""

import re

from py4j.protocol import Py4JJavaError

from strandline.errors import (
    InvalidConfigError,
    InvalidRecordError,
    StrandlineError,
    UnavailableError,
    all_error_classes,
)

_RAISED = re.compile(
    r"^(?P<place>[\w.]*?)(?P<name>\w+(?:Error|Exception)): (?P<text>.+)$", re.MULTILINE
)
_DATA = re.compile(r"\[(?!STREAM_FAILED)[A-Z_.]+\] [^\n]*SQLSTATE: 22\w{3}")
"""What Spark says of a value that SQL cannot take, as in a cast: it will not pass."""
_OURS = {each.__name__: each for each in all_error_classes()}
_KEYS = {
    "failOnDataLoss=false": "fail_on_data_loss: false",
    "denseOffsets=false": "dense_offsets: false",
    ", at strandline.spark.table.committed_offsets()": "",
    "startingOffsets": "starting_offsets",
    "deadLetters": "dead_letters",
}
"""What sources and sinks call an option, and a pipeline's file a key or does by itself."""
_LATE_WORKER = "Python worker failed to connect back"
_OUR_PLACE = f"{StrandlineError.__module__}."


def query_failure(name: str | None, error: Exception) -> StrandlineError:
    """Why a query ended.

    Args:
        name: of the query.
        error: as Spark raised it.
    """
    found = list(_RAISED.finditer(str(error)))
    ours = [each for each in found if each["place"] == _OUR_PLACE and each["name"] in _OURS]
    if ours:
        text = ours[-1]["text"]
        for option, key in _KEYS.items():
            text = text.replace(option, key)
        return _OURS[ours[-1]["name"]](f"query {name} failed: {text}")
    refused = _DATA.search(str(error))
    if refused is not None and not found:
        return InvalidRecordError(f"query {name} failed: {refused[0]}")
    said = found[-1][0] if found else _first_line(error)
    return UnavailableError(f"query {name} failed: {said}")


def is_late_worker(error: StrandlineError) -> bool:
    """Whether a Python process took longer to start than Spark waits, as on a busy machine.

    Spark gives it 10 s, which no setting changes; nothing was read or written then.
    """
    return _LATE_WORKER in error.message


def refused_description(error: Exception) -> InvalidConfigError:
    """Why Spark takes no SQL or schema of a pipeline's description."""
    return InvalidConfigError(f"the pipeline's SQL or schema: {_first_line(error)}")


def start_failure(error: Exception) -> StrandlineError:
    """Why Spark did not start a query: a setting that it refuses, or a checkpoint it cannot use."""
    if isinstance(error, Py4JJavaError):
        reason = error.java_exception.toString().splitlines()[0]
        return UnavailableError(f"Spark cannot start the pipeline: {reason}")
    return InvalidConfigError(f"Spark cannot start the pipeline: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
