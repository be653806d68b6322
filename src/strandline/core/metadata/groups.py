"""Liftbridge consumer groups in the image: members, coordinator and assignments.

Invariants: a group has at least one member; its epoch rises with every change that may move a
partition, and no epoch is used twice, so that a member's old state is distinguished from its new
one. Assignments follow from the image alone, so every broker computes the same.

Must not know which members are alive: a command removes a member.
"""

from collections.abc import Mapping
from heapq import heapify, heapreplace

import msgspec

from strandline.core.metadata.commands import JoinGroup, LeaveGroup, MoveGroup
from strandline.core.metadata.image import GroupImage, MetadataImage
from strandline.core.metadata.outcome import CommandRejectedError

GROUPS_MAX = 10_000
MEMBERS_MAX = 10_000
Assignment = dict[str, list[int]]
"""Stream → partitions."""


def join(image: MetadataImage, command: JoinGroup) -> MetadataImage:
    """Add a member; the first one creates the group."""
    group = image.groups.get(command.group)
    if not command.streams or any(name not in image.streams for name in command.streams):
        raise CommandRejectedError("unknown_stream", "stream does not exist")
    if group is None:
        if len(image.groups) >= GROUPS_MAX:
            raise CommandRejectedError("limit", f"there are {GROUPS_MAX} consumer groups")
        group = GroupImage(coordinator=command.coordinator)
    if command.member in group.members:
        raise CommandRejectedError(
            "already_member", "consumer is already a member of the consumer group"
        )
    if len(group.members) >= MEMBERS_MAX:
        raise CommandRejectedError("limit", f"the group has {MEMBERS_MAX} members")
    streams = tuple(sorted(set(command.streams)))
    members = {**group.members, command.member: streams}
    owners = {**group.owners, command.member: command.owner} if command.owner else group.owners
    joined = msgspec.structs.replace(group, members=members, owners=owners)
    return _with_group(image, command.group, joined)


def leave(image: MetadataImage, command: LeaveGroup) -> MetadataImage:
    """Remove a member; the last one deletes the group."""
    group = _known(image, command.group)
    if command.member not in group.members:
        raise CommandRejectedError(
            "unknown_member", "consumer is not a member of the consumer group"
        )
    members = {name: s for name, s in group.members.items() if name != command.member}
    owners = {name: o for name, o in group.owners.items() if name != command.member}
    left = msgspec.structs.replace(group, members=members, owners=owners)
    return _with_group(image, command.group, left)


def move(image: MetadataImage, command: MoveGroup) -> MetadataImage:
    """Move a group to another coordinator, unless it has changed since the decision."""
    group = _known(image, command.group)
    if group.epoch != command.epoch:
        raise CommandRejectedError("stale_group", f"the group's epoch is {group.epoch} now")
    moved = msgspec.structs.replace(group, coordinator=command.coordinator)
    return _with_group(image, command.group, moved)


def without_stream(image: MetadataImage, name: str) -> MetadataImage:
    """Remove a deleted stream from the subscriptions of all groups."""
    for group_id, group in image.groups.items():
        if not any(name in streams for streams in group.members.values()):
            continue
        members = {
            member: tuple(stream for stream in streams if stream != name)
            for member, streams in group.members.items()
        }
        changed = msgspec.structs.replace(group, members=members)
        image = _with_group(image, group_id, changed)
    return image


def with_more_partitions(image: MetadataImage, name: str) -> MetadataImage:
    """Raise the epoch of groups that read a stream with new partitions: they are assigned anew."""
    for group_id, group in image.groups.items():
        if any(name in streams for streams in group.members.values()):
            image = _with_group(image, group_id, group)
    return image


def assignments(group: GroupImage, partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Return the assignment of partitions to members.

    Stream by stream, in the order of their names, each partition goes to the member with the fewest
    so far; on a tie to the first by name.

    Args:
        group: the members.
        partitions: how many each stream has.
    """
    found: dict[str, Assignment] = {member: {} for member in group.members}
    counts = dict.fromkeys(group.members, 0)
    for stream in sorted({name for streams in group.members.values() for name in streams}):
        # A heap, because members ask every few seconds, and there may be thousands of members and
        # of partitions.
        next_of = [(counts[m], m) for m, streams in group.members.items() if stream in streams]
        heapify(next_of)
        for number in range(partitions.get(stream, 0)):
            count, member = next_of[0]
            found[member].setdefault(stream, []).append(number)
            counts[member] = count + 1
            heapreplace(next_of, (count + 1, member))
    return found


def _known(image: MetadataImage, group: str) -> GroupImage:
    found = image.groups.get(group)
    if found is None:
        raise CommandRejectedError("unknown_group", "consumer group does not exist")
    return found


def _with_group(image: MetadataImage, name: str, group: GroupImage) -> MetadataImage:
    """Return the image with a group in its next epoch, or without the group if it is empty."""
    groups = {key: value for key, value in image.groups.items() if key != name}
    epoch = image.next_group_epoch
    if group.members:
        groups[name] = msgspec.structs.replace(group, epoch=epoch)
    return msgspec.structs.replace(image, groups=groups, next_group_epoch=epoch + 1)
