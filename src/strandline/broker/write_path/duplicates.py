"""Detects records that are sent twice, by message id and by producer sequence.

Rules: loop thread. All this state is also in the log. It is loaded from there when it is first
needed, on a thread if there is much to read. While it loads, numbered batches are rejected with a
retriable error, but records with an id are held, since stock NATS clients do not retry. Later
appends to the partition, with an id or without, wait behind them, so that all keep their order. At
most ``HELD_MAX`` appends are held, for ``HELD_S_MAX`` at most; the others are rejected. Their bytes
count as pending, which slows publishers down.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.dedup import DedupWindow, ends_with_ids, load_window
from strandline.broker.write_path.pending import AckSink
from strandline.broker.write_path.producer_state import (
    NotedMeanwhile,
    ProducerStates,
    load_producers,
    note_batches,
    producers_from,
)
from strandline.broker.write_path.state_loader import IsWanted, StateLoader
from strandline.errors import StillLoadingError, StrandlineError
from strandline.record.batch import Buffer
from strandline.storage.log import Log
from strandline.types import Offset, PartitionName, ProducerStamp, TimestampNs

logger = logging.getLogger(__name__)

HELD_MAX: Final = 10_000
HELD_S_MAX: Final = 4.0
"""Shorter than the five seconds that stock NATS clients wait, so that they receive the reason."""


class HeldAppend(NamedTuple):
    """An append that waits until the message ids are loaded."""

    append: Callable[[], None]
    """Repeats the append; the ack sink receives the outcome."""
    ack_sink: AckSink | None
    token: object
    size: int
    records: int = 1


class HeldAppends:
    """The held appends of one partition.

    Args:
        stream: the partition's stream.
        admission: counts the bytes of held appends.
    """

    def __init__(self, stream: str, admission: Admission[Any]) -> None:
        self._stream = stream
        self._admission = admission
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: list[HeldAppend] = []

    def add(self, held: HeldAppend) -> StrandlineError | None:
        """Hold an append; return an error if it is rejected instead."""
        if len(self.waiting) >= HELD_MAX:
            return self._still_loading()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_S_MAX, self._expire)
        self.waiting.append(held)
        self._admission.pending_bytes += held.size
        self._admission.held += 1
        return None

    def release(self) -> None:
        """Repeat all held appends, in order; if some are held again, they keep their order."""
        for each in self._take():
            each.append()

    def reject(self, error: StrandlineError) -> None:
        """Reject all held appends."""
        for each in self._take():
            self._admission.reject(
                error, each.ack_sink, each.token, stream=self._stream, records=each.records
            )

    def _take(self) -> list[HeldAppend]:
        waiting, self.waiting = self.waiting, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._admission.pending_bytes -= sum(each.size for each in waiting)
        self._admission.held -= len(waiting)
        if waiting:
            self._admission.send_queue.deliver_soon()
        return waiting

    def _expire(self) -> None:
        self.reject(self._still_loading())

    def _still_loading(self) -> StillLoadingError:
        return StillLoadingError(
            f"message ids of stream {self._stream} are still being loaded from the log; retry"
        )


class Duplicates:
    """The message ids and producers of one partition.

    Args:
        name: the name of the partition, for messages.
        log: the log of the partition.
        admission: has the clocks; counts held appends.
    """

    def __init__(self, name: PartitionName, log: Log, *, admission: Admission[Any]) -> None:
        self._name = name
        self._log = log
        self._clock = admission.clock
        self._steady = admission.steady
        self.held = HeldAppends(name.stream, admission)
        """Appends that wait until the message ids are loaded, and those behind them."""
        self.window: DedupWindow | None = None
        self.producers: ProducerStates | None = None
        """The window and the producers are None until they are needed and loaded from the log."""
        self._window_replay: StateLoader[DedupWindow | None] = StateLoader(
            self._take_window, what=f"message ids of {name}", failed=self._window_failed
        )
        self._producers_replay: StateLoader[ProducerStates] = StateLoader(
            self._take_producers, what=f"producers of {name}"
        )
        self._noted_meanwhile = NotedMeanwhile(log.log_end_offset)

    # Asked before a record is accepted

    def find_message(self, message_id: str, window_ms: int) -> Offset | None:
        """Return the offset of the record that was stored under the id, or None.

        Args:
            message_id: the id of a new record.
            window_ms: how long the stream remembers ids; 0 means not at all.

        Raises:
            StillLoadingError: the ids are being loaded; retry.
            UnavailableError: the ids could not be loaded from the log.
        """
        if window_ms == 0:
            return None
        now_ns = self._steady.now_ns()
        if self.window is None:
            self._load_window(window_ms)
        assert self.window is not None, "else it is still read"
        return self.window.find(message_id, now_ns)

    def note_message(self, message_id: str, offset: Offset) -> None:
        """Note the id of a record that got its offset."""
        if self.window is not None:
            self.window.add(message_id, offset, self._steady.now_ns())

    def find_batch(self, producer: ProducerStamp, records: int) -> Offset | None:
        """Return the offset of a numbered batch that is stored already; None: it is the next one.

        Raises:
            OutOfOrderSequenceError, ProducerFencedError: it is neither stored nor the next one.
            StillLoadingError: the state is being loaded; retry.
            UnavailableError: the state could not be loaded from the log.
        """
        if self.producers is None:
            self._load_producers()
        assert self.producers is not None, "else they are still read"
        return self.producers.check(producer, records)

    def note_batch(self, producer: ProducerStamp, records: int, offset: Offset) -> None:
        """Note a numbered batch, whose first record is at ``offset``, as its producer's newest."""
        assert self.producers is not None, "it was checked"
        self.producers.note(producer, records, offset=offset, now_ns=self._steady.now_ns())

    def preload_messages(self, window_ms: int) -> None:
        """Start to load the message ids, if the newest batch of the log has any.

        So they are likely to be there at the first publish with an id. Where no publisher uses ids,
        loading would read much for nothing.
        """
        log = self._log
        if window_ms == 0 or log.log_end_offset == log.log_start_offset:
            return
        load = self._window_loader(window_ms)
        self._window_replay.begin(lambda is_wanted: load(is_wanted) if ends_with_ids(log) else None)

    # What happens to the log

    def copied(self, batches: Iterable[Buffer]) -> None:
        """Note the producers of batches that this broker replicated from the leader."""
        noted: ProducerStates | NotedMeanwhile | None = self.producers
        if noted is None:
            if not self._producers_replay.is_under_way:
                self._begin_to_load_producers()
                return  # the load reads these batches, too: they are in the log
            noted = self._noted_meanwhile
        now_ns = self._steady.now_ns()
        for batch in batches:
            note_batches(noted, batch, now_ns)

    def forget_from(self, offset: Offset) -> None:
        """Forget records at ``offset`` and after: they were accepted but not stored."""
        if self.window is not None:
            self.window.forget_from(offset)
        self.forget_producers_from(offset)

    def forget_producers_from(self, offset: Offset) -> None:
        """Forget numbered batches at ``offset`` and after; all of them if that is not possible."""
        is_empty = offset == self._log.log_start_offset
        if self.producers is None or is_empty or not self.producers.forget_from(offset):
            self._forget_producers()

    def forget_messages(self) -> None:
        """Forget all message ids, to load them again: another broker has led the partition."""
        self.window = None
        self._window_replay.cancel()

    def rebind(self, log: Log) -> None:
        """Start over with a log that was reopened."""
        self._log = log
        self.forget_messages()
        self._forget_producers()

    def close(self, error: StrandlineError) -> None:
        """Stop loading, and reject the held appends."""
        self._window_replay.cancel()
        self.held.reject(error)
        self._producers_replay.cancel()

    def _forget_producers(self) -> None:
        self.producers = None
        self._producers_replay.cancel()

    # Reading back

    def _load_window(self, window_ms: int) -> None:
        """Load the message ids of the window from the log.

        Raises:
            StillLoadingError: a thread is loading them.
            UnavailableError: the log cannot be read.
        """
        log = self._log
        since_ns = TimestampNs(self._clock.now_ns() - window_ms * 1_000_000)
        self._window_replay.read(
            self._window_loader(window_ms),
            size_bytes=lambda: log.bytes_from(log.offset_since(since_ns)),
        )

    def _window_loader(self, window_ms: int) -> Callable[[IsWanted], DedupWindow]:
        """Return a function that loads the message ids; it may run on any thread."""
        log, now_ns, steady_ns = self._log, self._clock.now_ns(), self._steady.now_ns()
        return lambda is_wanted: load_window(
            log, window_ms, now_ns, steady_ns=steady_ns, is_wanted=is_wanted
        )

    def _take_window(self, window: DedupWindow | None) -> None:
        self.window = window
        self.held.release()

    def _window_failed(self, error: StrandlineError) -> None:
        logger.warning("%s: message ids cannot be loaded from the log: %s", self._name, error)
        self.held.reject(error)

    def _begin_to_load_producers(self) -> None:
        try:
            self._load_producers()
        except StillLoadingError:
            logger.debug("%s: producers are being loaded on a thread", self._name)
        except StrandlineError as error:  # the next append of a producer tries again
            logger.warning("%s: producers cannot be loaded from the log: %s", self._name, error)

    def _load_producers(self) -> None:
        """Load the state of producers from the log.

        Batches that are replicated during the load are noted after it.

        Raises:
            StillLoadingError: a thread is loading it.
            UnavailableError: the log cannot be read.
        """
        log, now_ns = self._log, self._clock.now_ns()
        end = log.log_end_offset
        if not self._producers_replay.is_under_way:
            self._noted_meanwhile = NotedMeanwhile(end)
        self._producers_replay.read(
            lambda is_wanted: load_producers(log, now_ns, end=end, is_wanted=is_wanted),
            size_bytes=lambda: log.bytes_from(producers_from(log, now_ns)[0]),
        )

    def _take_producers(self, producers: ProducerStates) -> None:
        self._noted_meanwhile.move_to(producers)
        self.producers = producers
