"""Invariants of every image, and of every step from one image to the next.

For tests, simulators and diagnosis: each function returns a sentence for each violation. It looks
at images only and shares no code with what changes them.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.types import PartitionName

SESSIONS_CAP = 256
COUNTERS = ("next_log_id", "next_producer_id", "next_client_id", "next_event_id", "proposals")


def check_image(image: MetadataImage) -> list[str]:
    """Return the violated invariants of an image."""
    return [
        *_check_numbers(image),
        *_check_brokers(image),
        *_check_partitions(image),
        *_check_table(image),
    ]


def _check_numbers(image: MetadataImage) -> Iterator[str]:
    logs = Counter(partition.log_id for _, partition in image.partitions())
    for log_id, times in logs.items():
        if times > 1:
            yield f"log id {log_id} was given out {times} times"
    if logs and max(logs) >= image.next_log_id:
        yield f"log id {max(logs)} is not below the next one, {image.next_log_id}"
    if image.sessions and max(image.sessions) >= image.next_client_id:
        yield "a client id is not below the next one"
    ids = [*(event.id for event in image.events), image.next_event_id]
    if any(after <= before for before, after in pairwise(ids)):
        yield f"the ids of events, and the next one, do not grow: {ids}"
    owners = image.producer_owners
    if sorted(owners.values()) != list(range(1, len(owners) + 1)):
        yield f"two owners of producer ids share a number, or one is left out: {owners}"
    if len(image.sessions) > SESSIONS_CAP:
        yield f"{len(image.sessions)} sessions are kept"
    for name, stream in image.streams.items():
        if stream.config.name != name or stream.config.partitions != len(stream.partitions):
            yield f"stream {name} is not what its settings say"
        if not stream.partitions:
            yield f"stream {name} has no partition"


def _check_table(image: MetadataImage) -> Iterator[str]:
    """Check the counts of the stream table against a recount; yield differences."""
    replicas, preferred, led = Counter[int](), Counter[int](), Counter[int]()
    unsettled = {name for name in image.streams if name.startswith("__")}
    for name, partition in image.partitions():
        staying = [b for b in partition.replicas if b not in partition.removing]
        replicas.update(staying)
        preferred.update(staying[:1])
        led.update(() if partition.leader is None else (partition.leader,))
        is_moving = bool(partition.adding or partition.removing)
        if partition.replicas and (is_moving or partition.replicas[0] != partition.leader):
            unsettled.add(name.stream)
    table = image.table
    for label, counted in (("replicas", replicas), ("preferred", preferred), ("led", led)):
        if getattr(table, label) != counted:
            yield f"{label} of brokers are {counted}, not {getattr(table, label)}"
    if table.unsettled != unsettled:
        yield f"unsettled streams are {unsettled}, not {table.unsettled}"


def _check_brokers(image: MetadataImage) -> Iterator[str]:
    directories = Counter(b.directory_id for b in image.brokers.values() if b.directory_id)
    for directory, times in directories.items():
        if times > 1:
            yield f"{times} brokers have the directory {directory}"
    for broker_id in set(image.removed) & set(image.brokers):
        yield f"broker {broker_id} was removed, and is there"
    for key, broker in image.brokers.items():
        if broker.id != key:
            yield f"broker {broker.id} is kept as {key}"


def _check_partitions(image: MetadataImage) -> Iterator[str]:
    for name, partition in image.partitions():
        yield from _check_sets(name, partition)
        for broker in partition.replicas:
            if broker not in image.brokers:
                yield f"{name}: replica {broker} is no broker"
        if set(partition.replicas) <= set(image.brokers):
            yield from _check_service(name, partition, image)


def _check_sets(name: PartitionName, partition: PartitionImage) -> Iterator[str]:
    replicas, isr = set(partition.replicas), set(partition.isr)
    for label in ("replicas", "isr", "last_known_safe", "adding", "removing", "filling"):
        members = getattr(partition, label)
        if len(set(members)) != len(members):
            yield f"{name}: {label} {members} names a broker twice"
        if not set(members) <= replicas:
            yield f"{name}: {label} {members} are not all replicas"
    if partition.replicas and not isr:
        yield f"{name}: the ISR is empty"
    if partition.leader is not None and partition.leader not in isr:
        yield f"{name}: leader {partition.leader} is not in the ISR {partition.isr}"
    if isr & set(partition.last_known_safe):
        yield f"{name}: in the ISR and outside of it"
    if set(partition.filling) & {*partition.isr, *partition.last_known_safe}:
        yield f"{name}: {partition.filling} are being filled, and relied on"
    if set(partition.adding) & set(partition.removing):
        yield f"{name}: a replica comes and goes"
    if partition.replicas and not partition.target:
        yield f"{name}: no replica is to stay"


def _check_service(
    name: PartitionName, partition: PartitionImage, image: MetadataImage
) -> Iterator[str]:
    fenced = [b for b in partition.isr if image.brokers[b].is_fenced]
    if partition.leader is not None and fenced:
        yield f"{name}: {fenced} are fenced and in the ISR of leader {partition.leader}"
    min_isr = image.streams[name.stream].config.min_isr
    if len(partition.isr) >= min_isr and partition.last_known_safe:
        yield f"{name}: {partition.last_known_safe} kept as safe while commits go on"


def check_step(before: MetadataImage, after: MetadataImage) -> list[str]:
    """Return the violated invariants of a step from one image to the next."""
    return [
        *_check_counters(before, after),
        *_check_histories(before, after),
        *_check_changes(before, after),
    ]


def _check_changes(before: MetadataImage, after: MetadataImage) -> Iterator[str]:
    """Check that the table names every stream that has changed; yield those it lacks."""
    changed = after.table.changed_since(before.table)
    for name in before.streams.keys() | after.streams.keys():
        if before.streams.get(name) is not after.streams.get(name) and name not in changed:
            yield f"stream {name} changed, and is not among the changes {changed}"


def _check_counters(before: MetadataImage, after: MetadataImage) -> Iterator[str]:
    for counter in COUNTERS:
        if getattr(after, counter) < getattr(before, counter):
            yield f"{counter} fell from {getattr(before, counter)} to {getattr(after, counter)}"
    if not before.producer_owners.items() <= after.producer_owners.items():
        yield "an owner of producer ids was forgotten, or has another number"
    if not set(before.removed) <= set(after.removed):
        yield f"removed brokers {before.removed} became {after.removed}"
    if gone := set(before.brokers) - set(after.brokers) - set(after.removed):
        yield f"brokers {sorted(gone)} are gone and were not removed"
    known = {partition.log_id for _, partition in before.partitions()}
    for name, partition in after.partitions():
        if partition.log_id not in known and partition.log_id < before.next_log_id:
            yield f"{name}: log id {partition.log_id} was given out before"
    for client, session in after.sessions.items():
        if client in before.sessions and session.sequence < before.sessions[client].sequence:
            yield f"session {client} went back"
        if client not in before.sessions and client < before.next_client_id:
            yield f"client id {client} was given out before"


def _check_histories(before: MetadataImage, after: MetadataImage) -> Iterator[str]:
    earlier = {partition.log_id: partition for _, partition in before.partitions()}
    for name, partition in after.partitions():
        old = earlier.get(partition.log_id)
        if old is None or old is partition or old == partition:
            continue
        if partition.version <= old.version:
            yield f"{name}: changed, and its version is {partition.version} after {old.version}"
        has_lost = old.leader_epoch < partition.leader_epoch and len(partition.isr) == 1
        if partition.log_start_offset < old.log_start_offset and not has_lost:
            yield f"{name}: log start {partition.log_start_offset} after {old.log_start_offset}"
        if partition.leader_epoch < old.leader_epoch:
            yield f"{name}: epoch {partition.leader_epoch} after {old.leader_epoch}"
        if partition.leader != old.leader and partition.leader_epoch == old.leader_epoch:
            yield f"{name}: leaders {old.leader} and {partition.leader} share an epoch"


def check_settled(image: MetadataImage) -> list[str]:
    """Return the commands that an idle controller should have proposed."""
    wrong = []
    for name, partition in image.partitions():
        able = [b for b in partition.isr if image.brokers[b].may_lead]
        if partition.leader is None and able:
            wrong.append(f"{name}: no leader while {able} are in the ISR and in service")
        leader = image.brokers.get(partition.leader) if partition.leader is not None else None
        others = [b for b in able if b != partition.leader]
        if leader is not None and leader.is_stopping and others:
            wrong.append(f"{name}: led by {leader.id}, which stops, though {others} could")
        healthy = [b for b in others if not image.brokers[b].is_impaired and b in partition.target]
        min_isr = image.streams[name.stream].config.min_isr
        if leader is not None and leader.is_impaired and len(healthy) >= min_isr:
            wrong.append(f"{name}: led by {leader.id}, whose disk is impaired; {healthy} could")
    return wrong
