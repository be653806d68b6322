"""Acks of repeated appends: each is sent when the record that the append repeats is safe."""

from typing import Any, Protocol

from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.pending import AckSink, AckWaiter, PendingQueue, Waiting
from strandline.errors import StrandlineError
from strandline.types import Offset, PartitionName


class _RepeatedPartition(Protocol):
    """The part of a partition that ``RepeatAnswers`` uses."""

    name: PartitionName
    pending: PendingQueue

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def log_end_offset(self) -> Offset: ...


class RepeatAnswers:
    """The acknowledgements of one partition's repeated appends.

    Args:
        partition: the partition of the records.
        admission: counts duplicates, and sends the acks.
    """

    def __init__(self, partition: _RepeatedPartition, admission: Admission[Any]) -> None:
        self._partition = partition
        self._admission = admission
        self.late: list[tuple[Offset, AckWaiter]] = []
        """Repeats of records that are written but not committed, with the last record's offset."""

    def answer(
        self, known: Offset, ack_sink: AckSink | None, token: object, *, last: Offset
    ) -> None:
        """Acknowledge a repeat of the records ``known`` to ``last`` once they are durable."""
        partition = self._partition
        self._admission.duplicates += 1
        if ack_sink is None:
            return
        waiting = AckWaiter(ack_sink, token, known, duplicate=True)
        if last < partition.high_watermark:
            self._admission.send_queue.acknowledge(partition.name, [waiting])
        elif last < partition.log_end_offset:
            self.late.append((last, waiting))
        else:
            partition.pending.holder_of(last).waiting.append(waiting)

    def committed(self, offset: Offset) -> None:
        """Acknowledge repeats of records below ``offset``, which are committed."""
        due: list[Waiting] = [late for last, late in self.late if last < offset]
        self.late = [each for each in self.late if each[0] >= offset]
        self._admission.send_queue.acknowledge(self._partition.name, due)

    def reject(self, error: StrandlineError) -> None:
        """Reject the repeats that are not acknowledged yet."""
        late, self.late = self.late, []
        for _, each in late:
            each.rejected(error)
