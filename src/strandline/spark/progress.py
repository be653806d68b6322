"""The progress of a streaming query, committed as offsets of a consumer group for monitoring.

Rules: metrics and ``strandline group info`` show these offsets; the query itself starts from its
checkpoint. A commit must neither end nor delay a query: one that is not possible now is made with
the next micro-batch, and a rejected one is not repeated. Must not know Spark.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator

from strandline.api.groups import METADATA_MAX
from strandline.errors import StrandlineError
from strandline.spark.connection import client_of
from strandline.spark.options import ReadOptions
from strandline.spark.planning import Offsets

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


@contextlib.contextmanager
def failure_noted(server: str, groups: Iterable[str]) -> Iterator[None]:
    """Commit the error that ends a pipeline: its groups show it until it commits progress again."""
    try:
        yield
    except StrandlineError as error:
        try:
            for group in groups:
                client_of(server).groups.commit(
                    group, {}, metadata=str(error)[:METADATA_MAX], timeout_s=_TIMEOUT_S
                )
        except StrandlineError as failure:
            logger.info("the error is not noted in its group: %s", failure)
        raise


class QueryProgress:
    """Commits offsets, if the query has a group.

    Args:
        options: of the query.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._server = options.server
        self._group = options.group
        self._noted: Offsets | None = None

    def reached(self, offsets: Offsets) -> None:
        """Commit these offsets."""
        if self._group is None or offsets == self._noted:
            return
        positions = {self._options.place(p): offset for p, offset in offsets.items()}
        try:
            client_of(self._server).groups.commit(self._group, positions, timeout_s=_TIMEOUT_S)
        except StrandlineError as error:
            if error.retriable:
                logger.info("progress of %s is noted later: %s", self._group, error)
                return
            logger.warning("progress of %s is no longer committed: %s", self._group, error)
            self._group = None
        self._noted = offsets
