"""Reads of a partition's log for other brokers, and repair of corruption from their replicas.

Rules: reads and repairs run on a thread. Must not know roles.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from strandline.broker.cluster.reading import read_batches, read_range, split
from strandline.broker.cluster.replication_throttle import ReplicationThrottle
from strandline.broker.write_path.group_commit import GroupCommitter
from strandline.broker.write_path.partition import Partition
from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.events import Event
from strandline.core.replication.messages import BatchRef, Buffer
from strandline.core.replication.state import LogState
from strandline.errors import CorruptBatchError, LogPoisonedError, StrandlineError
from strandline.storage.repair import repair_log
from strandline.telemetry import Telemetry
from strandline.types import BrokerId, LogId

logger = logging.getLogger(__name__)

DIFFERENT = "; copies of a compacted stream may differ: move this one away and back"


class RangeServerHost(Protocol):
    """The parts of a broker that ``RangeServer`` needs."""

    committer: GroupCommitter
    telemetry: Telemetry

    def in_thread(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run a function that reads files on a thread, then ``done`` on the loop."""
        ...

    def move_rate(self, log_id: LogId, follower: BrokerId) -> ReplicationThrottle | None:
        """Return the throttle for reads of a follower; None if they are not throttled."""
        ...


class RangeServer:
    """Reads and repairs one replica's log.

    Args:
        partition: the partition whose log is read.
        state: the replica's log state.
        host: the broker.
        step: passes the batches that were read to the replica.
    """

    def __init__(
        self,
        partition: Partition,
        state: LogState,
        host: RangeServerHost,
        *,
        step: Callable[[Event], None],
    ) -> None:
        self._partition = partition
        self._log_state = state
        self._host = host
        self._step = step
        self.is_over = False
        """Whether the replica was dropped."""

    def read_log(self, effect: fx.ReadLog) -> None:
        """Read for a follower that is behind; throttled if a move is adding the follower."""
        reader = self._partition.log_id, effect.follower
        rate = self._host.move_rate(*reader)
        if rate is None:
            self._read_for(effect, effect.bytes_max, None)
            return
        size = min(effect.bytes_max, rate.slice_bytes)
        rate.ask(reader, lambda: self._read_for(effect, size, rate))

    def _read_for(
        self, effect: fx.ReadLog, bytes_max: int, rate: ReplicationThrottle | None
    ) -> None:
        """Read the log on a thread, then pass the batches to the replica."""
        if self.is_over:
            return
        found: list[tuple[BatchRef, Buffer]] = []
        log, asked = self._partition.log, effect.from_offset
        end = self._log_state.log_end_offset  # batches after it are not in the journal yet

        def read() -> None:
            try:
                found.extend(read_batches(log, asked, bytes_max, below=end))
            except CorruptBatchError as corruption:
                self._partition.committed.report_corruption(corruption)
            except StrandlineError as error:
                name = self._partition.name
                logger.error("%s cannot be read for a follower: %s", name, error)  # noqa: TRY400  no trace

        def done() -> None:
            refs, buffers = split(found)
            if rate is not None:
                rate.spent(sum(ref.size for ref in refs))
            self._step(ev.BatchesRead(effect.follower, effect.session, asked, refs, buffers))

        self._host.in_thread(read, done)

    def read_range(self, effect: fx.ReadRange) -> None:
        """Read, on a thread, the batches that another replica has lost, if this one has them."""
        found: list[tuple[BatchRef, Buffer]] = []
        log, first, after = self._partition.log, effect.first_offset, effect.next_offset

        def read() -> None:
            try:
                found.extend(read_range(log, first, after))
            except CorruptBatchError as corruption:
                self._partition.committed.report_corruption(corruption)
            except StrandlineError as error:
                name = self._partition.name
                logger.error("%s cannot be read for a repair: %s", name, error)  # noqa: TRY400  no trace

        def done() -> None:
            if found:
                refs, buffers = split(found)
                self._step(ev.RangeRead(effect.to, first, refs, buffers))

        self._host.in_thread(read, done)

    def repair(self, effect: fx.Repair) -> None:
        """Write batches of another replica over corrupt ones, on a thread."""
        first, after = effect.batches[0].base_offset, effect.batches[-1].next_offset
        name, telemetry = self._partition.name, self._host.telemetry
        batches, is_compacted = list(map(bytes, effect.buffers)), self._partition.config.has_gaps
        log, outcome = self._partition.log, list[bool | StrandlineError]()

        def work() -> None:
            try:
                outcome.append(repair_log(log, batches, is_compacted=is_compacted))
            except StrandlineError as error:
                outcome.append(error)

        def done() -> None:
            [found] = outcome
            if isinstance(found, LogPoisonedError):
                self._host.committer.poison(found)
            elif isinstance(found, StrandlineError):
                telemetry.failed_repairs += 1
                why = f"{found}{DIFFERENT if is_compacted else ''}"
                logger.error(
                    "records %d to %d of %s are not repaired: %s", first, after - 1, name, why
                )
            elif found:
                telemetry.repaired_batches += len(effect.batches)
                logger.warning("records %d to %d of %s were repaired", first, after - 1, name)

        self._host.in_thread(work, done)
