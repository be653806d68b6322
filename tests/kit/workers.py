"""Clients that work while brokers fail; each measures its longest pause."""

import threading
import time

from strandline.errors import StrandlineError

PATIENCE_S = 60


class Worker:
    """Repeats one operation, and measures the longest pause between successes."""

    def __init__(self, work):
        self.done = 0
        self.pause_s = 0.0
        self._last_s = time.monotonic()
        self._work = work
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._is_over.wait(0.01):
            try:
                has_done = self._work()
            except StrandlineError:
                continue  # a failed operation makes the pause longer, which is measured
            if has_done:
                self._note()
                self.done += 1

    def _note(self):
        now_s = time.monotonic()
        self.pause_s, self._last_s = max(self.pause_s, now_s - self._last_s), now_s

    def begin(self):
        """Measure pauses from now on."""
        self._last_s, self.pause_s = time.monotonic(), 0.0

    def end(self):
        """Stop; return the longest pause."""
        self._is_over.set()
        self._note()
        self._thread.join(PATIENCE_S)
        return self.pause_s


def workers(client, stack):
    """Start a producer, a subscription, transactions and a member of a group, as workers."""
    producer = stack(client.producer("orders"))
    subscription = stack(client.subscribe("orders"))
    consumer = stack(client.consumer("billing", "orders"))

    def produce():
        acks = [producer.append(b"v", partition=number) for number in range(3)]
        return all(ack.result(PATIENCE_S) is not None for ack in acks)

    def commit():
        with client.transaction("t") as transaction:
            transaction.append("orders", b"t")
        return True

    return {
        "producer": Worker(produce),
        "subscription": Worker(lambda: next(subscription)),
        "transactions": Worker(commit),
        "group": Worker(lambda: consumer.poll(1.0)),
    }
