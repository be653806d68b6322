"""The error boundary of the Flight server: clients get typed Flight errors only.

Rules: a ``StrandlineError`` is sent with its code. Malformed Arrow data is an invalid request. Any
other exception is a bug: it is logged with its traceback, and the client gets no details.
"""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from strandline.api.status import to_flight
from strandline.errors import InvalidRecordError, StrandlineError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def typed_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Return a Flight handler that raises Flight errors only."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except fl.FlightError:
            raise
        except StrandlineError as error:
            raise to_flight(error) from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise to_flight(InvalidRecordError(f"not valid Arrow data: {error}")) from None
        except Exception:
            logger.exception("a %s call failed", method.__name__)
            raise fl.FlightInternalError("internal error; see the broker's log") from None

    return guarded
