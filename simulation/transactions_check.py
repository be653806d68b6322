"""The check of transactions, by the answers to clients and the values that readers see.

A value names the transaction that wrote it, ``id/attempt/number``. The ids of parts begin with
their job and batch.
"""

from collections import Counter, defaultdict
from collections.abc import Callable

from strandline.testing.history import ViolationError

OPEN, COMMITTED, ABORTED, UNKNOWN = "open", "committed", "aborted", "unknown"


class TransactionChecker:
    """The expected and observed outcomes of all transactions."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.acked: dict[str, set[str]] = defaultdict(set)
        self.written: dict[str, set[str]] = defaultdict(set)
        self.positions: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.published: dict[str, tuple[str, ...]] = {}
        self.counts: Counter[str] = Counter()
        self._seen: dict[str, list[str]] = {}

    # From clients

    def begun(self, name: str) -> None:
        """Note that a transaction has begun."""
        self.outcomes[name] = OPEN

    def ended(self, name: str, outcome: str) -> None:
        """Note the outcome that a client received, or that it received no answer."""
        self.outcomes[name] = outcome

    def wrote(self, name: str, value: str) -> None:
        """Note that a record was sent."""
        self.written[name].add(value)

    def stored(self, name: str, value: str) -> None:
        """Note that a record was acknowledged."""
        self.acked[name].add(value)

    def moved(self, name: str, group: str, offset: int) -> None:
        """Note a group's offset that was committed in a transaction or a batch."""
        self.positions[group].append((offset, name))

    def batch_published(self, batch: str, parts: tuple[str, ...]) -> None:
        """Note the first acknowledgement that a batch is published.

        Raises:
            ViolationError: the batch was published before, with other parts.
        """
        if self.published.setdefault(batch, parts) != parts:
            raise ViolationError(f"batch {batch} was published twice: {parts}")
        self.counts["published"] += 1

    # From readers

    def read(self, place: str, values: list[str]) -> None:
        """Check the values of a partition, read from its beginning.

        Raises:
            ViolationError: values that were seen before are missing, or elsewhere.
        """
        before = self._seen.get(place, [])
        if values[: len(before)] != before:
            raise ViolationError(f"{place} showed {before[-5:]}, and now {values[-5:]}")
        self._seen[place] = values

    def nothing_open(self, place: str, *, is_open: bool) -> None:
        """Check that a partition has no open transaction, long after all were decided.

        Raises:
            ViolationError: readers still wait for one.
        """
        if is_open:
            raise ViolationError(f"{place} still waits for a transaction that has ended")

    def may_be_gone(self, name: str, *, is_so: bool) -> None:
        """Check that a prepared transaction that is unknown now may have been decided.

        Raises:
            ViolationError: nobody had decided it.
        """
        if not is_so:
            raise ViolationError(f"{name} was prepared, and is unknown without a decision")

    def gets_on(self, id_: str, *, is_so: bool) -> None:
        """Check that a client made progress in a time without faults.

        Raises:
            ViolationError: it could not end a single transaction.
        """
        if not is_so:
            raise ViolationError(f"{id_} makes no progress, although there are no faults")

    # The end

    def judge(self, final: dict[str, list[str]], position: Callable[[str], int]) -> None:
        """Check that each transaction is complete or absent, as its client was answered.

        Raises:
            ViolationError: a transaction is not.
        """
        shown: dict[str, list[str]] = defaultdict(list)
        for values in final.values():
            for value in values:
                shown[value.rpartition("/")[0]].append(value)
        for name, outcome in self.outcomes.items():
            self._judge_one(name, outcome, shown.get(name, []))
            self.counts[outcome] += 1
        self._judge_batches(shown)
        for group, moves in self.positions.items():
            self._judge_position(moves, position(group), group=group, shown=shown)

    def _judge_one(self, name: str, outcome: str, shown: list[str]) -> None:
        if len(set(shown)) != len(shown):
            raise ViolationError(f"{name} is visible twice: {sorted(shown)}")
        missing = self.acked[name].difference(shown)
        if outcome == COMMITTED and missing:
            raise ViolationError(f"{name} was committed, but {sorted(missing)} is not visible")
        if outcome == ABORTED and shown:
            raise ViolationError(f"{name} was aborted, but {sorted(shown)} is visible")
        if shown and missing:
            raise ViolationError(f"{name} is visible in part: {sorted(missing)} is missing")
        if set(shown) - self.written[name]:
            raise ViolationError(f"{name} has values that nobody wrote")

    def _judge_batches(self, shown: dict[str, list[str]]) -> None:
        for batch, parts in self.published.items():
            others = [name for name in shown if name.startswith(f"{batch}/") and name not in parts]
            if others:
                raise ViolationError(f"{batch} has {others}, which was not published with it")
            for part in parts:
                if self.acked[part].difference(shown.get(part, [])):
                    raise ViolationError(f"{batch} was published without {part}")

    def _judge_position(
        self,
        moves: list[tuple[int, str]],
        found: int,
        *,
        group: str,
        shown: dict[str, list[str]],
    ) -> None:
        """Check that a group's offset is that of the last committed transaction or batch."""
        counting = [
            offset
            for offset, name in moves
            if self.outcomes.get(name) == COMMITTED or shown.get(name) or name in self.published
        ]
        unsure = [
            offset
            for offset, name in moves
            if self.outcomes.get(name, UNKNOWN) == UNKNOWN and name not in self.published
        ]
        last = max(counting, default=-1)
        if found not in {last, *(offset for offset in unsure if offset > last)}:
            raise ViolationError(f"the offset of {group} is {found}, not {last}")
