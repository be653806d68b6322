"""Seeded bugs: one wrong function each, put in on purpose, that the metadata's judges must find.

Rule: a bug is one change that a tired engineer could make, done by replacing one function where it
is looked up. A bug that is not found in the seeds given means that a check is blind, and is a
failure of the tests, not of the product.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from strandline.metadata import apply, brokers, changes, controller, partitions, placement, streams
from strandline.testing.sim.metadata import MetadataLife
from strandline.testing.sim.world import ViolationError

STEPS = 300


@dataclass(frozen=True, slots=True)
class Bug:
    """One wrong function."""

    name: str
    function: str
    wrong: Callable[..., Any]
    modules: tuple[ModuleType, ...]
    """Where the function is looked up."""

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """The product with the bug, until the block is left."""
        right = [(module, getattr(module, self.function)) for module in self.modules]
        try:
            for module in self.modules:
                setattr(module, self.function, self.wrong)
            yield
        finally:
            for module, function in right:
                setattr(module, self.function, function)


def _nothing(*_: object, **__: object) -> None:
    """A check that is left out."""


def _known_safe(partition: Any, isr: Any, **_: object) -> Any:
    known = {*partition.isr, *partition.last_known_safe} & set(partition.replicas)
    return tuple(sorted(known - set(isr)))


def _recorded_if_applied(image: Any, entry: Any, outcome: Any) -> Any:
    return _recorded(image, entry, outcome) if outcome.is_applied else image


_recorded = apply._recorded  # noqa: SLF001  the bug wraps what it replaces
_forget_replica = partitions.forget_replica


def _forget_without_version(partition: Any, broker: Any) -> Any:
    after = _forget_replica(partition, broker)
    is_member = after.isr != partition.isr or after.last_known_safe != partition.last_known_safe
    return after if is_member else partition


BUGS = (
    Bug(
        "fencing empties the ISR",
        "remaining_isr",
        lambda isr, gone: tuple(b for b in isr if b not in gone),
        (partitions,),
    ),
    Bug("safe replicas are kept while commits go on", "safe_outside", _known_safe, (partitions,)),
    Bug("every replica is taken for safe", "is_safe", lambda *_: True, (partitions,)),
    Bug("a new leader keeps the old epoch", "next_epoch", lambda epoch: epoch, (partitions,)),
    Bug("a change keeps the version", "next_version", lambda version: version, (partitions,)),
    Bug("a fenced broker may join the ISR", "check_may_join_isr", _nothing, (partitions,)),
    Bug("a decision on an old image applies", "is_current", lambda *_: True, (changes,)),
    Bug(
        "a move ends before its replicas are in sync",
        "why_move_waits",
        lambda *_, **__: "",
        (partitions, controller),
    ),
    Bug("a retry is applied again", "was_seen", lambda *_: False, (apply,)),
    Bug("a refusal is not recorded", "_recorded", _recorded_if_applied, (apply,)),
    Bug(
        "log ids of deleted streams are reused",
        "log_id_after",
        lambda image, added: sum(1 for _ in image.partitions()) + len(added) + 1,
        (streams,),
    ),
    Bug("a second data directory is let in", "check_directory", _nothing, (brokers,)),
    Bug("a lost disk keeps the version", "forget_replica", _forget_without_version, (brokers,)),
    Bug("a fenced broker stays fenced", "is_back", lambda *_: False, (controller,)),
    Bug("a silent broker is never late", "is_late", lambda *_: False, (controller,)),
    Bug("a stopping broker keeps its partitions", "successors", lambda *_: (), (controller,)),
    Bug("leaders are not shared again", "rebalance_leaders", _nothing, (controller,)),
    Bug(
        "draining forgets the throttle and what is moving",
        "moving",
        lambda _: -1_000,
        (placement,),
    ),
)


def seeds_that_find(bug: Bug, seeds: Iterable[int], *, steps: int = STEPS) -> list[int]:
    """The seeds in whose lives the bug is found, by a checker or an assertion of the product."""
    found = []
    with bug.put_in():
        for seed in seeds:
            try:
                MetadataLife(seed).live(steps)
            except (ViolationError, AssertionError):
                found.append(seed)
    return found


def hunt(seeds: Iterable[int], *, steps: int = STEPS) -> dict[str, int]:
    """In how many of the seeds each bug is found."""
    known = tuple(seeds)
    return {bug.name: len(seeds_that_find(bug, known, steps=steps)) for bug in BUGS}
