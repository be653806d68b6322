"""Several publishers on threads, each with one record under way, until they are told to stop.

Rules: a record is sent again only where the system recognizes it by an id; the number of records is
bounded. What a publisher was told is kept by kind.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.faults.clients import Appender, NoAckError
from benchmarks.faults.records import Ledger

CONNECTIONS: Final = 8
RECORDS_MAX: Final = 20_000
"""Of one connection."""
PACE_S: Final = 0.005
"""Between a connection's ack and its next record: the load is to be judged, not to be fast."""
RETRY_S: Final = 0.05
POLL_S: Final = 0.01
END_TIMEOUT_S: Final = 30.0


class FaultLoad:
    """The publishers of one run.

    Args:
        ledger: gets the acks.
        appender: makes the client of a connection.
    """

    def __init__(self, ledger: Ledger, appender: Callable[[int], Appender]) -> None:
        self.ledger = ledger
        self.errors: Counter[str] = Counter()
        """What publishers were told instead of an ack, and how often."""
        for connection in range(CONNECTIONS):
            ledger.acked[connection] = []
        self._appender = appender
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=(number,), daemon=True)
            for number in range(CONNECTIONS)
        ]

    def _publish(self, connection: int) -> None:
        appender, number = self._appender(connection), 0
        try:
            while number < RECORDS_MAX and not self._ending.is_set():
                value = self.ledger.payloads.value(connection, number)
                try:
                    appender.append(f"{connection}-{number}", value)
                except NoAckError as error:
                    self.errors[str(error)] += 1
                    self._ending.wait(RETRY_S)
                    number += not appender.retries
                else:
                    self.ledger.acked[connection].append(number)
                    number += 1
                    self._ending.wait(PACE_S)
        finally:
            appender.close()

    def progress(self, records: int, timeout_s: float) -> bool:
        """Waits until every connection got so many acks more; whether it did in time."""
        acked = self.ledger.acked
        goals = {each: len(acked[each]) + records for each in range(CONNECTIONS)}
        return wait_until(lambda: all(len(acked[n]) >= goals[n] for n in goals), timeout_s)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Publishes; at the end waits for the records that are under way."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in self._threads:
                thread.join(END_TIMEOUT_S)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Polls until the condition holds; whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
