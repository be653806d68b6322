"""The check of transactions: only from clients' answers and readers' observations.

A value names the transaction that wrote it, ``id/attempt/number``; ids of parts begin with their
job and batch.
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
        """A transaction has begun."""
        self.outcomes[name] = OPEN

    def ended(self, name: str, outcome: str) -> None:
        """A client received an outcome, or asked without an answer."""
        self.outcomes[name] = outcome

    def wrote(self, name: str, value: str) -> None:
        """A record was sent."""
        self.written[name].add(value)

    def stored(self, name: str, value: str) -> None:
        """A record was acknowledged."""
        self.acked[name].add(value)

    def moved(self, name: str, group: str, offset: int) -> None:
        """A position of a group was noted, to count with a transaction or a batch."""
        self.positions[group].append((offset, name))

    def batch_published(self, batch: str, parts: tuple[str, ...]) -> None:
        """A batch was acknowledged as published for the first time.

        Raises:
            ViolationError: it had been, with other parts.
        """
        if self.published.setdefault(batch, parts) != parts:
            raise ViolationError(f"batch {batch} was published twice: {parts}")
        self.counts["published"] += 1

    # From readers

    def read(self, place: str, values: list[str]) -> None:
        """A reader has read a partition from its beginning.

        Raises:
            ViolationError: what was seen before is not there, or elsewhere.
        """
        before = self._seen.get(place, [])
        if values[: len(before)] != before:
            raise ViolationError(f"{place} showed {before[-5:]}, and now {values[-5:]}")
        self._seen[place] = values

    def nothing_open(self, place: str, *, is_open: bool) -> None:
        """Everything has been decided for long.

        Raises:
            ViolationError: readers still wait.
        """
        if is_open:
            raise ViolationError(f"{place} still waits for a transaction that is over")

    def may_be_gone(self, name: str, *, is_so: bool) -> None:
        """A prepared transaction may be unknown to all by now.

        Raises:
            ViolationError: nobody had decided it.
        """
        if not is_so:
            raise ViolationError(f"{name} was prepared, and is gone without a decision")

    def gets_on(self, id_: str, *, is_so: bool) -> None:
        """For a while there were no faults.

        Raises:
            ViolationError: a client could not end a single transaction.
        """
        if not is_so:
            raise ViolationError(f"{id_} does not get on, though nothing is in its way")

    # The end

    def judge(self, final: dict[str, list[str]], position: Callable[[str], int]) -> None:
        """Check that each transaction is complete or absent, as its client was told.

        Raises:
            ViolationError: one is not.
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
            raise ViolationError(f"{name} is shown twice: {sorted(shown)}")
        missing = self.acked[name].difference(shown)
        if outcome == COMMITTED and missing:
            raise ViolationError(f"{name} was committed and {sorted(missing)} is not shown")
        if outcome == ABORTED and shown:
            raise ViolationError(f"{name} was aborted and {sorted(shown)} is shown")
        if shown and missing:
            raise ViolationError(f"{name} is shown in part: {sorted(missing)} is missing")
        if set(shown) - self.written[name]:
            raise ViolationError(f"{name} shows what nobody wrote")

    def _judge_batches(self, shown: dict[str, list[str]]) -> None:
        for batch, parts in self.published.items():
            others = [name for name in shown if name.startswith(f"{batch}/") and name not in parts]
            if others:
                raise ViolationError(f"{batch} shows {others}, which was not published with it")
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
        """The position is that of the last transaction or batch that counts."""
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
            raise ViolationError(f"the position of {group} is {found}, not {last}")
