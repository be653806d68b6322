"""The end of a pipeline is reported as one line with a remedy, not as Spark's stack traces."""

import pytest

from strandline.errors import (
    InvalidConfigError,
    InvalidRecordError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.spark.pipelines.failures import query_failure, refused_description

HEAD = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
TRACE = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (...):
  File "writer.py", line 123, in write
    return self.appender.stage(iterator, txn_id=txn_id, batch=batch)
"""
TAIL = """
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: copy a into b [id = 1, runId = 2]
"""


def test_our_own_error_is_what_ended_a_query():
    """Its class and message, also when Spark stumbled over it and said more."""
    line = "strandline.errors.UnknownStreamError: no stream 'smalll'; there are: small"
    after = "\nDuring handling of the above exception:\nUnboundLocalError: no 'reader'"
    found = query_failure("copy a into b", RuntimeError(HEAD + TRACE + line + after + TAIL))
    assert type(found) is UnknownStreamError
    assert found.message == "query copy a into b failed: no stream 'smalll'; there are: small"


def test_advice_is_about_what_pipelines_have():
    """The source advises its own option, which a pipeline's file has under another name."""
    for said, told in (
        ("DataLossError: gone; or set failOnDataLoss=false to", "set fail_on_data_loss: false to"),
        ("InvalidRecordError: no JSON; the option 'deadLetters'", "no JSON; 'dead_letters'"),
        ("DataLossError: x; set denseOffsets=false", "x; set dense_offsets: false"),
        (
            "DataLossError: a checkpoint, at strandline.spark.table.committed_offsets(); else",
            "a checkpoint; else",
        ),
        ("InvalidConfigError: option 'startingOffsets' takes", ": 'starting_offsets' takes"),
        ("InvalidRequestError: a; set tableFormat=delta, or", "a; set format: delta, or"),
        ("InvalidRequestError: a; leave tableFormat out", "a; leave format out"),
        ("InvalidRequestError: lake/deadLetters/x is not", "lake/deadLetters/x is not"),
    ):
        line = f"strandline.errors.{said}"
        found = query_failure("q", RuntimeError(HEAD + TRACE + line + TAIL))
        assert told in found.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRACE + "pyarrow.lib.ArrowInvalid: x\nValueError: no number", "ValueError: no number"),
        ("Python worker failed to connect back.", HEAD + "Python worker failed to connect back."),
        (TRACE + "strandline.errors.FutureError: hm", "strandline.errors.FutureError: hm"),
    ],
)
def test_what_is_not_ours_is_unavailable(text, message):
    """The last Python exception, else Spark's first line."""
    found = query_failure("q", RuntimeError(HEAD + text + TAIL))
    assert type(found) is UnavailableError
    assert found.message.splitlines() == [f"query q failed: {message}"]


def test_a_value_that_sql_cannot_take_is_no_outage():
    """It is a permanent error, so the pipeline is not restarted for ever."""
    cast = '[CAST_INVALID_INPUT] The value \'1.5\' of the type "STRING" is no "BIGINT".'
    found = query_failure("q", RuntimeError(f"{HEAD}{cast} Use `try_cast`. SQLSTATE: 22018{TAIL}"))
    assert type(found) is InvalidRecordError
    assert found.message == f"query q failed: {cast} Use `try_cast`. SQLSTATE: 22018"


def test_sql_that_spark_rejects_is_the_description_s_mistake():
    """Spark begins its message with an empty line, and ends it with plans."""
    found = refused_description(RuntimeError("\n[PARSE_SYNTAX_ERROR] at 'SELEKT'\n\n== SQL ==\n"))
    assert type(found) is InvalidConfigError
    assert found.message.endswith("schema: [PARSE_SYNTAX_ERROR] at 'SELEKT'")
    assert refused_description(RuntimeError("")).message.endswith("RuntimeError")
