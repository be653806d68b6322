"""The edge of the Flight front end: whatever happens inside, the client gets a typed Flight error.

Rules: an error of ours travels with its code; malformed Arrow data is the sender's fault; anything
else is our bug, is logged with its trace, and tells the client no more than that.
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
    """Make a Flight handler raise Flight errors only."""

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
