"""How far a streaming query has come, noted with the broker for whoever watches it.

Rules: it is noted as the positions of a consumer group without members, which metrics and
``strandline group info`` show; the query itself never begins there, its checkpoint counts. A note
must not end a query nor hold it up: what cannot be noted now is noted with the next micro-batch,
and what is refused is not tried again. Must not know Spark.
"""

import logging

from strandline.errors import StrandlineError
from strandline.spark.connection import client_of
from strandline.spark.options import ReadOptions
from strandline.spark.planning import Offsets
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


class Progress:
    """Notes positions, if the query has a group.

    Args:
        options: of the query.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._server = options.server
        self._stream = options.stream
        self._group = options.group
        self._noted: Offsets | None = None

    def reached(self, offsets: Offsets) -> None:
        """Everything below these offsets is done."""
        if self._group is None or offsets == self._noted:
            return
        positions = {PartitionName(self._stream, p): offset for p, offset in offsets.items()}
        try:
            client_of(self._server).groups.commit(self._group, positions, timeout_s=_TIMEOUT_S)
        except StrandlineError as error:
            if error.retriable:
                logger.info("progress of %s is noted later: %s", self._group, error)
                return
            logger.warning("progress of %s is not noted any more: %s", self._group, error)
            self._group = None
        self._noted = offsets
