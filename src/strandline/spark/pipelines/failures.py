"""Translation of Spark's errors in pipelines to one-line errors with a code.

Rules: Spark's messages contain stack traces and plans, and a ``StrandlineError`` in its Python
processes comes back as such text. The useful line is extracted: the ``StrandlineError``, as its own
class; else the last Python exception; else Spark's message about a value that SQL cannot process;
else the first line. The rest stays in Spark's log. Must not know which pipeline it is.
"""

import contextlib
import re
from collections.abc import Iterator

from py4j.protocol import Py4JJavaError

from strandline.errors import (
    InvalidConfigError,
    InvalidRecordError,
    StrandlineError,
    UnavailableError,
    all_error_classes,
)
from strandline.spark.planning import OTHERS_ADVICE

_RAISED = re.compile(
    r"^(?P<place>[\w.]*?)(?P<name>\w+(?:Error|Exception)): (?P<text>.+)$", re.MULTILINE
)
_DATA = re.compile(r"\[(?!STREAM_FAILED)[A-Z_.]+\] [^\n]*SQLSTATE: 22\w{3}")
"""Spark's error classes for a value that SQL cannot process, as in a cast: permanent."""
_OURS = {each.__name__: each for each in all_error_classes()}
_KEYS = {
    "avroSchema": "schema",
    "avroWriterSchema": "writer_schema",
    "deadLetters": "dead_letters",
    "denseOffsets": "dense_offsets",
    "failOnDataLoss": "fail_on_data_loss",
    "fileBytes": "file_bytes",
    "maxBytesPerTrigger": "batch_bytes_max",
    "maxRecordsPerTrigger": "batch_records_max",
    "maxTriggerDelayMs": "batch_delay_ms_max",
    "minBytesPerTrigger": "batch_bytes_min",
    "primaryKey": "primary_key",
    "snapshotAgeMs": "snapshot_age_ms",
    "startingOffsets": "starting_offsets",
    "streamPattern": "stream_pattern",
    "tableFormat": "format",
    "valueSchema": "schema",
}
"""The pipeline keys of options of sources and sinks."""
_OPTION = re.compile(r"(?:the )?option '(\w+)'")
_NAME = re.compile(rf"(?<![\w/.-])({'|'.join(_KEYS)})(?:(=)|(?![\w/-]))")
"""Matches the name of an option, except within a path."""
_ADVICE = {
    "start the query at strandline.spark.table.committed_offsets()": "another load wrote them; run "
    "this one again, it continues there",
    ", at strandline.spark.table.committed_offsets()": "",
    OTHERS_ADVICE: "; a table says where the others go on",
}
"""Advice in errors about queries, and the advice that replaces it for pipelines."""
_LATE_WORKER = "Python worker failed to connect back"
_OUR_PLACE = f"{StrandlineError.__module__}."


def query_failure(name: str | None, error: Exception) -> StrandlineError:
    """Return the error that ended a query.

    Args:
        name: the name of the query.
        error: the error that Spark raised.
    """
    found = list(_RAISED.finditer(str(error)))
    ours = [each for each in found if each["place"] == _OUR_PLACE and each["name"] in _OURS]
    if ours:
        text = in_keys(ours[-1]["text"])
        return _OURS[ours[-1]["name"]](f"query {name} failed: {text}")
    refused = _DATA.search(str(error))
    if refused is not None and not found:
        return InvalidRecordError(f"query {name} failed: {refused[0]}")
    reason = found[-1][0] if found else _first_line(error)
    return UnavailableError(f"query {name} failed: {reason}")


def in_keys(text: str) -> str:
    """Return a message in which keys of a pipeline's file replace the names of options."""
    for advice, ours in _ADVICE.items():
        text = text.replace(advice, ours)
    text = _OPTION.sub(r"'\1'", text)
    return _NAME.sub(lambda found: _KEYS[found[1]] + (": " if found[2] else ""), text)


@contextlib.contextmanager
def naming_keys() -> Iterator[None]:
    """Replace options by keys in errors of this context, since the user wrote a file."""
    try:
        yield
    except StrandlineError as error:
        error.args = (in_keys(error.message), *error.args[1:])
        raise


def is_late_worker(error: StrandlineError) -> bool:
    """Return whether a Python process started too slowly for Spark, as on a busy machine.

    Spark gives the process 10 s, which no setting changes. Nothing was read or written by then.
    """
    return _LATE_WORKER in error.message


def refused_description(error: Exception) -> InvalidConfigError:
    """Return the error of SQL or a schema that Spark rejects."""
    return InvalidConfigError(f"the pipeline's SQL or schema: {_first_line(error)}")


def start_failure(error: Exception) -> StrandlineError:
    """Return the error of a query that did not start: a rejected setting or checkpoint."""
    if isinstance(error, Py4JJavaError):
        reason = error.java_exception.toString().splitlines()[0]
        return UnavailableError(f"Spark cannot start the pipeline: {reason}")
    return InvalidConfigError(f"Spark cannot start the pipeline: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
