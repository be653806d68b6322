"""The progress of a streaming query, committed as offsets of a consumer group for monitoring.

Rules: metrics and ``strandline group info`` show these offsets; the query itself starts from its
checkpoint. A commit must neither end nor delay a query: if it is not possible now, the next
micro-batch commits; if it was rejected, no further commits are tried. Must not know Spark.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator

from strandline.api.groups import METADATA_MAX
from strandline.errors import StrandlineError
from strandline.spark.connection import client_of
from strandline.spark.options import ReadOptions
from strandline.spark.planning import Offsets

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


@contextlib.contextmanager
def failure_noted(server: str, groups: Iterable[str], stop: threading.Event) -> Iterator[None]:
    """Commit the error that ends a pipeline; its groups show it until the pipeline runs again.

    Args:
        server: the server of the pipeline.
        groups: the consumer groups to which the pipeline commits its progress.
        stop: set once the user has stopped the pipeline; errors are then ignored.
    """
    names = set(groups)
    _note(server, names, "")
    try:
        yield
    except Exception as error:
        if not stop.is_set():
            what = str(error) if isinstance(error, StrandlineError) else repr(error)
            _note(server, names, what[:METADATA_MAX])
        raise


def _note(server: str, groups: Iterable[str], text: str) -> None:
    for group in groups:
        try:
            client_of(server).groups.commit(group, {}, metadata=text, timeout_s=_TIMEOUT_S)
        except StrandlineError as error:
            logger.info("whether the pipeline works is not noted in group %s: %s", group, error)


class QueryProgress:
    """Commits offsets, if the query has a group.

    Args:
        options: the options of the query.
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
