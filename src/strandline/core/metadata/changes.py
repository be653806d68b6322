"""Commands that change many partitions: each change succeeds or fails alone.

Rule: a change names the partition's log id and version at the time of the decision. If the log id
differs (the stream was deleted and created again) or the version does (another change was first),
the change is rejected and its proposer decides again. By this compare-and-set, leaders and the
controller never overwrite each other's changes.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from strandline.core.metadata.brokers import known_broker, known_run
from strandline.core.metadata.commands import (
    ChangeIsr,
    ElectionReason,
    ElectLeader,
    FinishReassignment,
    IsrChange,
    LeaderChange,
    LogStart,
    Move,
    MoveLogStarts,
    PartitionAt,
    ReassignReplicas,
)
from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.core.metadata.internal_streams import adapt_settings
from strandline.core.metadata.outcome import (
    CommandOutcome,
    CommandRejectedError,
    CommandRejection,
    Reason,
)
from strandline.core.metadata.partitions import (
    begin_move,
    change_isr,
    elect,
    finish_move,
    move_log_start,
)
from strandline.core.metadata.streams import check_replicas
from strandline.errors import InvalidRequestError
from strandline.types import BrokerId, PartitionName

Item = TypeVar("Item")
Changed = dict[PartitionName, PartitionImage]
CHANGES_MAX = 10_000
MESSAGES_MAX = 20


def change_isrs(image: MetadataImage, command: ChangeIsr) -> tuple[MetadataImage, CommandOutcome]:
    """Set the ISRs that leaders ask for."""
    leader = known_run(image, command.leader).id
    one = partial(_change_isr, image, leader)
    return _each(image, command.changes, at=lambda item: item.at, change=one)


def _change_isr(image: MetadataImage, leader: BrokerId, change: IsrChange) -> PartitionImage:
    found = find_partition(image, change.at)
    if found.leader != leader or found.leader_epoch != change.leader_epoch:
        raise CommandRejectedError(
            "not_leader",
            f"broker {found.leader} leads in epoch {found.leader_epoch}, not broker {leader} in "
            f"epoch {change.leader_epoch}",
        )
    for broker in change.isr:
        known_broker(image, broker)
    return change_isr(found, change.isr, brokers=image.brokers, min_isr=_min_isr(image, change.at))


def elect_leaders(
    image: MetadataImage, command: ElectLeader
) -> tuple[MetadataImage, CommandOutcome]:
    """Elect leaders; only the reason ``unclean`` allows one that may lack committed records."""
    one = partial(_elect, image, reason=command.reason)
    return _each(image, command.changes, at=lambda item: item.at, change=one)


def _elect(image: MetadataImage, change: LeaderChange, *, reason: ElectionReason) -> PartitionImage:
    return elect(
        find_partition(image, change.at),
        change.leader,
        brokers=image.brokers,
        min_isr=_min_isr(image, change.at),
        is_unclean=reason == "unclean",
        has_failed=reason == "leader_failed",
    )


def reassign(
    image: MetadataImage, command: ReassignReplicas
) -> tuple[MetadataImage, CommandOutcome]:
    """Begin reassignments."""
    one = partial(_begin_move, image)
    return _each(image, command.moves, at=lambda item: item.at, change=one)


def _begin_move(image: MetadataImage, move: Move) -> PartitionImage:
    found = find_partition(image, move.at)
    if not found.replicas:
        raise CommandRejectedError(
            "bad_assignment",
            "the partition has no replicas: it was created by a broker that ran alone",
        )
    check_replicas(image, move.target)
    min_isr = _min_isr(image, move.at)
    if len(move.target) < min_isr:
        raise CommandRejectedError("bad_assignment", f"min_isr needs {min_isr} replicas")
    for broker in move.target:
        if broker not in found.replicas and not image.brokers[broker].may_take_replicas:
            state = image.brokers[broker].state
            raise CommandRejectedError("not_eligible", f"broker {broker} is {state}")
    return begin_move(found, move.target)


def finish(
    image: MetadataImage, command: FinishReassignment
) -> tuple[MetadataImage, CommandOutcome]:
    """Finish reassignments whose new replicas are in sync."""
    one = partial(_finish, image)
    after, outcome = _each(image, command.partitions, at=lambda item: item, change=one)
    return adapt_settings(after, command.partitions), outcome


def _finish(image: MetadataImage, at: PartitionAt) -> PartitionImage:
    return finish_move(find_partition(image, at), min_isr=_min_isr(image, at))


def move_log_starts(
    image: MetadataImage, command: MoveLogStarts
) -> tuple[MetadataImage, CommandOutcome]:
    """Raise log start offsets, because records were deleted."""
    one = partial(_move_log_start, image)
    return _each(image, command.changes, at=lambda item: item.at, change=one)


def _move_log_start(image: MetadataImage, change: LogStart) -> PartitionImage:
    return move_log_start(find_partition(image, change.at), change.offset)


def find_partition(image: MetadataImage, at: PartitionAt) -> PartitionImage:
    """Return the partition that a decision is about, if it has not changed since.

    Raises:
        CommandRejectedError: it is gone, or has changed since.
        UnknownStreamError, UnknownPartitionError: it is gone.
    """
    found = image.partition(at.stream, at.partition)
    if found.log_id != at.log_id:
        raise CommandRejectedError(
            "stale_partition", f"stream {at.stream!r} was deleted and created again; retry"
        )
    if not is_current(found, at):
        raise CommandRejectedError(
            "stale_partition", f"its version is {found.version}, not {at.version}; retry"
        )
    return found


def is_current(partition: PartitionImage, at: PartitionAt) -> bool:
    """Whether the partition has not changed since the decision."""
    return partition.version == at.version


def _min_isr(image: MetadataImage, at: PartitionAt) -> int:
    return image.streams[at.stream].config.min_isr


def _each(
    image: MetadataImage,
    items: tuple[Item, ...],
    *,
    at: Callable[[Item], PartitionAt],
    change: Callable[[Item], PartitionImage],
) -> tuple[MetadataImage, CommandOutcome]:
    """Apply each valid change; if there is none, reject the command with the first reason."""
    _check_each(items, at)
    changed: Changed = {}
    left_out: list[CommandRejection] = []
    for item in items:
        where = at(item)
        try:
            changed[where.name] = change(item)
        except CommandRejectedError as error:
            left_out.append(_rejection(where, error.reason, error.message, count=len(left_out)))
        except InvalidRequestError as error:
            gone = _rejection(where, "stale_partition", error.message, count=len(left_out))
            left_out.append(gone)
    if changed:
        return image.with_partitions(changed), CommandOutcome(rejected=tuple(left_out))
    first = left_out[0]
    return image, CommandOutcome(
        code=InvalidRequestError.code,
        reason=first.reason,
        message=first.message,
        rejected=tuple(left_out),
    )


def _rejection(at: PartitionAt, reason: Reason, message: str, *, count: int) -> CommandRejection:
    """Return one rejected change; only the first few have a message, since outcomes are stored."""
    text = f"{at.stream}/{at.partition}: {message}" if count < MESSAGES_MAX else ""
    return CommandRejection(at.stream, at.partition, reason, text)


def _check_each(items: tuple[Item, ...], at: Callable[[Item], PartitionAt]) -> None:
    """Reject a command that names a partition twice, or too many."""
    if not 1 <= len(items) <= CHANGES_MAX:
        raise CommandRejectedError(
            "limit", f"a command names 1 to {CHANGES_MAX} partitions, got {len(items)}"
        )
    names: Iterable[PartitionName] = (at(item).name for item in items)
    if len(set(names)) != len(items):
        raise CommandRejectedError("stale_partition", "a partition is named twice")
