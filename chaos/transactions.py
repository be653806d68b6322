"""A transactional client in a chaos run, and the check of its commits and aborts.

Rules: each transaction writes one record with its number to every partition of a stream of its
own. Readers see a committed number in every partition once, an aborted one in none, and one whose
outcome is unknown in all partitions or in none.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import strandline
from chaos.clients import FULL, addresses
from chaos.load import RETRY_S, expected
from strandline.client.client import Client
from strandline.errors import (
    OutOfOrderSequenceError,
    ProducerFencedError,
    StillLoadingError,
    StrandlineError,
    TransactionAbortedError,
)
from strandline.testing.history import ViolationError
from strandline.testing.process import ProcessServer

STREAM: Final = "chaos-transactions"
TRANSACTION_ID: Final = "chaos"
TIMEOUT_S: Final = 20.0
ABORT_EVERY: Final = 5
UNDECIDED: Final = (
    OutOfOrderSequenceError,
    ProducerFencedError,
    StillLoadingError,
    TransactionAbortedError,
    *FULL,
)
"""Errors after which the next transaction under the same id decides the outcome of this one."""


class TransactionLoad:
    """Commits numbered transactions, and aborts every fifth; runs in a thread.

    Args:
        servers: brokers to connect to.
        partitions: how many partitions ``STREAM`` has.
    """

    name = "transactions"

    def __init__(self, servers: Sequence[ProcessServer], partitions: int) -> None:
        self.steps = 0
        """The number of committed transactions."""
        self.errors: Counter[str] = Counter()
        self.is_stopping = False
        self._servers = servers
        self._partitions = partitions
        self._committed: set[int] = set()
        self._aborted: set[int] = set()
        self._begun = 0

    def run(self) -> None:
        """Write transactions until told to stop.

        Raises:
            ViolationError: an error that no fault may cause.
        """
        with strandline.connect(addresses(self._servers)) as client:
            while not self.is_stopping:
                try:
                    self._write(client, self._begun)
                except StrandlineError as error:
                    self.errors[expected(error, *UNDECIDED)] += 1
                    time.sleep(RETRY_S)
                finally:
                    self._begun += 1

    def _write(self, client: Client, number: int) -> None:
        transaction = client.transaction(TRANSACTION_ID, timeout_s=TIMEOUT_S)
        for partition in range(self._partitions):
            transaction.append(STREAM, str(number), partition=partition)
        if number % ABORT_EVERY == ABORT_EVERY - 1:
            transaction.abort()
            self._aborted.add(number)
            return
        try:
            transaction.commit()
        except TransactionAbortedError:
            self._aborted.add(number)
            raise
        self._committed.add(number)
        self.steps += 1

    def judge(self) -> None:
        """Compare what readers see with the answers, after all faults have ended.

        Raises:
            ViolationError: a transaction is visible in part, twice, or against its outcome.
            StrandlineError: the stream cannot be read.
        """
        seen: list[Counter[int]] = []
        with strandline.connect(addresses(self._servers)) as client:
            client.transaction(TRANSACTION_ID).abort()  # decides an open one of the same id
            for partition in range(self._partitions):
                table = client.read(STREAM, partition=partition, columns=["value"]).read_all()
                seen.append(Counter(int(value) for value in table["value"].to_pylist()))
        for number in range(self._begun):
            counts = {each[number] for each in seen}
            allowed = [{0}, {1}]
            if number in self._committed:
                allowed = [{1}]
            elif number in self._aborted:
                allowed = [{0}]
            if counts not in allowed:
                found = [each[number] for each in seen]
                raise ViolationError(f"transaction {number}: {found} records, expected {allowed}")
