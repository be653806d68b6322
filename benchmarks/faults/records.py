"""Numbered records of several connections, the acks they got, and the judgement at the end.

Rules: a record's bytes follow from the seed, its connection and its number, so that a changed bit
is seen without a copy. Each is published with one record under way per connection. A record has
three outcomes: acknowledged, rejected or unknown; only the first is a promise. Must not know what
the records are published to.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Final

MARK: Final = b"vf-record "
SIZE_BYTES_MIN, SIZE_BYTES_MAX = 200, 2000
NUMBERED: Final = re.compile(MARK + rb"(\d{3}) (\d{8}) ")


@dataclass(frozen=True)
class Payloads:
    """The records of a seed."""

    seed: int

    def value(self, connection: int, number: int) -> bytes:
        """The bytes of a record."""
        chance = random.Random(f"{self.seed} {connection} {number}")
        head = MARK + b"%03d %08d " % (connection, number)
        return head + chance.randbytes(chance.randint(SIZE_BYTES_MIN, SIZE_BYTES_MAX) - len(head))

    def key(self, value: bytes) -> tuple[int, int] | None:
        """Connection and number of a record; None if these are not its bytes."""
        if (found := NUMBERED.match(value)) is None:
            return None
        connection, number = map(int, found.groups())
        return (connection, number) if self.value(connection, number) == value else None


@dataclass
class Verdict:
    """What became of the acknowledged records."""

    acked: int = 0
    lost: int = 0
    """Acknowledged, and not there."""
    unreported: int = 0
    """Lost, though the system served and reported no corruption."""
    doubled: int = 0
    """Copies too many."""
    altered: int = 0
    """Stored records whose bytes were never published."""
    disordered: int = 0
    """Acknowledged records that come after a later one of their connection."""

    def add(self, other: Verdict) -> None:
        """Adds another run's figures."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def is_honest(self) -> bool:
        """Whether nothing was doubled, altered or disordered, nor lost without a report."""
        return not (self.unreported or self.doubled or self.altered or self.disordered)


@dataclass
class Ledger:
    """The acks of one run. Each connection's thread appends to its own list."""

    payloads: Payloads
    acked: dict[int, list[int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many records were acknowledged so far."""
        return sum(len(numbers) for numbers in self.acked.values())

    def judge(self, stored: Iterable[bytes]) -> Verdict:
        """Compares with what was read back, in the order in which it is stored."""
        verdict = Verdict(acked=self.count)
        promised = {(each, number) for each, numbers in self.acked.items() for number in numbers}
        copies: Counter[tuple[int, int]] = Counter()
        last: dict[int, int] = defaultdict(lambda: -1)
        for value in stored:
            if (key := self.payloads.key(value)) is None:
                verdict.altered += 1
                continue
            copies[key] += 1
            if key in promised and copies[key] == 1:
                connection, number = key
                verdict.disordered += number < last[connection]
                last[connection] = max(last[connection], number)
        verdict.lost = len(promised - copies.keys())
        verdict.doubled = copies.total() - len(copies)
        return verdict
