"""Seeded bugs of the metadata: one wrong function each, which the checks must find.

Rule: a bug is one change that an engineer could make by mistake. It replaces one function where
that is looked up. A bug that no seed finds means that a check is missing: a failure of the tests,
not of the product.
"""

from typing import Any, Final

from simulation.bugs import Replacement
from strandline.core.metadata import (
    apply,
    brokers,
    changes,
    controller,
    partitions,
    placement,
    streams,
)


def _nothing(*_: object, **__: object) -> None:
    """Do nothing, in place of a check."""


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


def _in_service(image: Any) -> list[Any]:
    return sorted(b for b, broker in image.brokers.items() if not broker.is_fenced)


METADATA_BUGS: Final = (
    Replacement(
        "fencing empties the ISR",
        "remaining_isr",
        lambda isr, gone: tuple(b for b in isr if b not in gone),
        (partitions,),
    ),
    Replacement(
        "safe replicas are kept while commits go on", "safe_outside", _known_safe, (partitions,)
    ),
    Replacement("every replica counts as safe", "is_safe", lambda *_: True, (partitions,)),
    Replacement(
        "a new leader keeps the old epoch", "next_epoch", lambda epoch: epoch, (partitions,)
    ),
    Replacement(
        "a change keeps the version", "next_version", lambda version: version, (partitions,)
    ),
    Replacement("a fenced broker may join the ISR", "check_may_join_isr", _nothing, (partitions,)),
    Replacement("a decision on an old image applies", "is_current", lambda *_: True, (changes,)),
    Replacement(
        "a move ends before its replicas are in sync",
        "why_move_waits",
        lambda *_, **__: "",
        (partitions, controller),
    ),
    Replacement("a retry is applied again", "was_seen", lambda *_: False, (apply,)),
    Replacement("a rejection is not recorded", "_recorded", _recorded_if_applied, (apply,)),
    Replacement(
        "log ids of deleted streams are reused",
        "log_id_after",
        lambda image, added: sum(1 for _ in image.partitions()) + len(added) + 1,
        (streams,),
    ),
    Replacement("a second data directory is accepted", "check_directory", _nothing, (brokers,)),
    Replacement(
        "a lost disk keeps the version", "forget_replica", _forget_without_version, (brokers,)
    ),
    Replacement("a fenced broker stays fenced", "is_back", lambda *_: False, (controller,)),
    Replacement("a silent broker is never late", "is_late", lambda *_: False, (controller,)),
    Replacement(
        "a stopping broker keeps its partitions", "successors", lambda *_: (), (controller,)
    ),
    Replacement("leaders are not balanced again", "rebalance_leaders", _nothing, (controller,)),
    Replacement(
        "the id of a removed broker is used again",
        "removed_with",
        lambda image, _: image.removed,
        (brokers,),
    ),
    Replacement(
        "an unclean leader deletes new records below an old log start",
        "log_start_after_loss",
        lambda partition: partition.log_start_offset,
        (partitions,),
    ),
    Replacement(
        "a move that cannot continue blocks others",
        "is_under_way",
        lambda partition, _: partition.is_moving,
        (placement,),
    ),
    Replacement(
        "replicas are moved to brokers that are drained", "open_brokers", _in_service, (placement,)
    ),
    Replacement(
        "draining ignores the throttle and moves in progress",
        "moving",
        lambda _: -1_000,
        (placement,),
    ),
    Replacement(
        "an older copy of a directory is accepted", "check_not_older", _nothing, (brokers,)
    ),
    Replacement(
        "the stored index of a new run is noted for the earlier run",
        "reported_index",
        lambda _, heard: heard.stored_index if heard is not None else 0,
        (controller,),
    ),
)
