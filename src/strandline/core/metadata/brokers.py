"""Membership of brokers: admission, registration, fencing, draining, removal.

Rules:
- a broker is identified by its id and its data directory. Another directory under a known id is
  rejected: two brokers would replace each other. An operator declares a lost disk by name;
- each start has an incarnation. A request by, or a report about, an earlier one does not apply;
- a broker registers fenced, also after a restart: what it knew as a leader was only in memory, so
  its leaderships end first;
- a fenced broker leads nothing and is in no ISR, unless the ISR would become empty;
- the id of a removed broker is never used again: messages in flight and other brokers' settings
  may still name it.

Every function takes an image and returns the next, or raises ``CommandRejectedError``.
"""

from collections.abc import Collection

import msgspec

from strandline.core.metadata.commands import (
    AdmitBroker,
    BeginShutdown,
    BrokerRun,
    Drain,
    Fence,
    ForgetDirectory,
    RegisterBroker,
    RemoveBroker,
    ReportStorage,
    Unfence,
)
from strandline.core.metadata.image import BrokerImage, MetadataImage
from strandline.core.metadata.outcome import CommandRejectedError
from strandline.core.metadata.partitions import fence, forget_replica
from strandline.types import BrokerId

BROKERS_MAX = 100
TEXT_MAX = 200
PORT_MAX = 65_535
_TEXTS = (
    "directory_id",
    "incarnation",
    "peer_address",
    "flight_address",
    "grpc_address",
    "rack",
    "beam_address",
)


def known_broker(image: MetadataImage, broker: BrokerId) -> BrokerImage:
    """Return the broker with this id.

    Raises:
        CommandRejectedError: no such broker is registered.
    """
    if broker not in image.brokers:
        known = ", ".join(str(b) for b in sorted(image.brokers)) or "none"
        raise CommandRejectedError(
            "unknown_broker", f"no broker {broker} is registered; there are: {known}"
        )
    return image.brokers[broker]


def known_run(image: MetadataImage, run: BrokerRun) -> BrokerImage:
    """Return the broker of a run, if that is its latest run.

    Raises:
        CommandRejectedError: no such broker, or it was started again since.
    """
    found = known_broker(image, run.broker)
    if found.incarnation != run.incarnation or not run.incarnation:
        raise CommandRejectedError(
            "stale_incarnation",
            f"broker {run.broker} runs as {found.incarnation!r}, not {run.incarnation!r}",
        )
    return found


def admit(image: MetadataImage, command: AdmitBroker) -> MetadataImage:
    """Admit a new broker at an address."""
    known = image.brokers.get(command.broker)
    if known is not None and known.directory_id:
        raise CommandRejectedError(
            "duplicate_broker",
            f"broker {known.id} exists ({known.state}, at {known.peer_address or 'no address'}); "
            "give the new broker another id",
        )
    host, _, port = command.peer_address.rpartition(":")
    is_address = host and port.isdecimal() and 0 < int(port) <= PORT_MAX
    if not is_address or len(command.peer_address) > TEXT_MAX or command.broker < 1:
        raise CommandRejectedError(
            "limit",
            f"a broker needs an id above 0 and an address HOST:PORT, got id {command.broker} and "
            f"address {command.peer_address[:TEXT_MAX]!r}",
        )
    _check_id(image, command.broker)
    expected = BrokerImage(
        id=command.broker, directory_id="", incarnation="", peer_address=command.peer_address
    )
    return image.with_broker(expected)


def _check_id(image: MetadataImage, broker: BrokerId) -> None:
    """Reject the id of a removed broker, and a broker beyond ``BROKERS_MAX``."""
    if broker in image.removed:
        raise CommandRejectedError(
            "removed_broker",
            f"broker {broker} was removed from the cluster, and its id is not used again; give "
            "this broker another id and an empty data directory",
        )
    if broker not in image.brokers and len(image.brokers) >= BROKERS_MAX:
        raise CommandRejectedError(
            "limit", f"there are already {BROKERS_MAX} brokers, the maximum; remove one first"
        )


def register(image: MetadataImage, command: RegisterBroker) -> MetadataImage:
    """Register a new broker, or one that has restarted."""
    _check_registration(image, command)
    known = image.brokers.get(command.broker)
    reported = {name: getattr(command, name) for name in (*_TEXTS, "partitions_max")}
    if known is None:
        return image.with_broker(BrokerImage(id=command.broker, **reported))
    check_directory(known, command)
    if known.incarnation == command.incarnation:
        return image.with_broker(msgspec.structs.replace(known, **reported))
    check_not_older(known, command)
    again = msgspec.structs.replace(known, **reported, is_fenced=True, is_stopping=False)
    return _without_service(image, {known.id}).with_broker(again)


def _check_registration(image: MetadataImage, command: RegisterBroker) -> None:
    if command.broker < 1 or not command.directory_id or not command.incarnation:
        raise CommandRejectedError(
            "limit", "a broker needs an id above 0, a directory and an incarnation"
        )
    if max(len(getattr(command, name)) for name in _TEXTS) > TEXT_MAX:
        raise CommandRejectedError(
            "limit", f"addresses and labels have at most {TEXT_MAX} characters"
        )
    _check_id(image, command.broker)
    for other in image.brokers.values():
        if other.id != command.broker and other.directory_id == command.directory_id:
            raise CommandRejectedError(
                "duplicate_broker",
                f"this data directory is that of broker {other.id}; start it with id {other.id}, "
                "or give this broker a directory of its own",
            )


def check_directory(known: BrokerImage, command: RegisterBroker) -> None:
    """Reject a second broker with a known id.

    Raises:
        CommandRejectedError: the data directory differs.
    """
    if known.directory_id not in ("", command.directory_id):
        raise CommandRejectedError(
            "duplicate_broker",
            f"broker {known.id} exists ({known.state}, at {known.peer_address or 'no address'}) "
            "with another data directory; give this broker another id, or, if that disk is lost, "
            f"run 'strandline cluster replace-disk {known.id}' first",
        )


def check_not_older(known: BrokerImage, command: RegisterBroker) -> None:
    """Reject a broker that has lost what it acknowledged: its votes, and perhaps records.

    Raises:
        CommandRejectedError: its data directory is an older copy.
    """
    # A broker that comes with its own directory is never rejected. An earlier run of it reported
    # ``known.stored_index``: an entry that was committed, and synced on its disk. Every later
    # leader has a committed entry, so this broker never has to truncate it (Raft, 5.4), and a
    # snapshot that replaces it counts as its last entry. So each later start finds it again:
    # ``command.stored_index``, the last entry found at the start of the run that registers, is no
    # smaller. Entries that were acknowledged but not committed do not count, since another leader
    # may overwrite them.
    #
    # The report must be of an earlier run. The quorum's leader knows what is on a broker's disk
    # too (its ``match``), but of the newest run, which follows the quorum long before it registers
    # and so has more than it found at its start. Therefore each run reports for itself, in its
    # heartbeats, which begin after it has registered. A registration that is repeated, because its
    # answer was lost, is not compared.
    if command.stored_index < known.stored_index:
        raise CommandRejectedError(
            "older_copy",
            f"the data directory of broker {known.id} is an older copy: it has the metadata up to "
            f"entry {command.stored_index}, and had acknowledged entry {known.stored_index}. "
            "Start it with the newest directory; or, if that is lost, run 'strandline cluster "
            f"replace-disk {known.id}' and start it again: what it lacks is copied from the others",
        )


def _with_stored(broker: BrokerImage, stored: tuple[int, ...], number: int) -> BrokerImage:
    """Return the broker with its last stored index raised; it never goes back."""
    index = stored[number] if number < len(stored) else 0
    return msgspec.structs.replace(broker, stored_index=max(index, broker.stored_index))


def fence_brokers(image: MetadataImage, command: Fence) -> MetadataImage:
    """Fence brokers together, so that the ISR of each partition shrinks once."""
    found = [
        _with_stored(known_run(image, run), command.stored, number)
        for number, run in enumerate(command.runs)
    ]
    gone = {broker.id: broker for broker in found if not broker.is_fenced}
    if not gone:
        return image
    image = _without_service(image, gone.keys())
    fenced = {b: msgspec.structs.replace(broker, is_fenced=True) for b, broker in gone.items()}
    return msgspec.structs.replace(image, brokers={**image.brokers, **fenced})


def _without_service(image: MetadataImage, gone: Collection[BrokerId]) -> MetadataImage:
    """End the leaderships and ISR memberships of brokers."""
    # Brokers fenced before count as gone too: an ISR without a live member stays as it was.
    out = {*gone, *(b.id for b in image.brokers.values() if b.is_fenced)}
    changed = {}
    for name, partition in image.partitions():
        if partition.leader in gone or not out.isdisjoint(partition.isr):
            after = fence(partition, out, min_isr=image.streams[name.stream].config.min_isr)
            if after is not partition:
                changed[name] = after
    return image.with_partitions(changed)


def unfence_brokers(image: MetadataImage, command: Unfence) -> MetadataImage:
    """Unfence brokers; separate commands change leaders and ISRs."""
    brokers = dict(image.brokers)
    for number, run in enumerate(command.runs):
        found = _with_stored(known_run(image, run), command.stored, number)
        if found.is_stopping:
            raise CommandRejectedError(
                "not_eligible", f"broker {run.broker} is stopping; it has to restart"
            )
        brokers[found.id] = msgspec.structs.replace(found, is_fenced=False)
    return msgspec.structs.replace(image, brokers=brokers)


def begin_shutdown(image: MetadataImage, command: BeginShutdown) -> MetadataImage:
    """Note that a broker is about to stop."""
    found = known_run(image, command.run)
    return image.with_broker(msgspec.structs.replace(found, is_stopping=True))


def drain(image: MetadataImage, command: Drain) -> MetadataImage:
    """Mark a broker as being drained, or no longer."""
    found = known_broker(image, command.broker)
    return image.with_broker(msgspec.structs.replace(found, is_draining=command.is_on))


def report_storage(image: MetadataImage, command: ReportStorage) -> MetadataImage:
    """Note whether a broker's disk accepts writes; separate commands move its leaderships."""
    found = known_run(image, command.run)
    return image.with_broker(msgspec.structs.replace(found, is_impaired=command.is_impaired))


def forget_directory(image: MetadataImage, command: ForgetDirectory) -> MetadataImage:
    """Forget a broker's data directory: its replicas no longer count, and another may register.

    The broker may also return with its old directory, whose replicas are then copied again like
    new ones. So an order that was a mistake can be undone.
    """
    found = known_broker(image, command.broker)
    if not found.is_fenced:
        raise CommandRejectedError(
            "broker_in_use", f"broker {found.id} is {found.state}; stop it first"
        )
    changed = {}
    for name, partition in image.partitions():
        if found.id in partition.replicas:
            try:
                changed[name] = forget_replica(partition, found.id)
            except CommandRejectedError as error:
                raise CommandRejectedError(
                    error.reason,
                    f"broker {found.id} cannot be forgotten: in {name} {error.message}; elect "
                    "another leader there first, which loses records, or delete the stream",
                ) from error
    empty = msgspec.structs.replace(
        found, directory_id="", incarnation="", is_impaired=False, stored_index=0
    )
    return image.with_partitions(changed).with_broker(empty)


def remove(image: MetadataImage, command: RemoveBroker) -> MetadataImage:
    """Remove a broker that is out of service; its id is never used again."""
    found = known_broker(image, command.broker)
    if found.may_take_replicas:
        raise CommandRejectedError("broker_in_use", f"broker {found.id} is live; drain it first")
    kept = [str(name) for name, p in image.partitions() if found.id in p.replicas]
    if kept:
        raise CommandRejectedError(
            "broker_in_use",
            f"broker {found.id} keeps {len(kept)} partitions, such as {kept[0]}; drain it first",
        )
    brokers = {b: broker for b, broker in image.brokers.items() if b != found.id}
    removed = removed_with(image, found.id)
    return msgspec.structs.replace(image, brokers=brokers, removed=removed)


def removed_with(image: MetadataImage, broker: BrokerId) -> tuple[BrokerId, ...]:
    """Return the ids of all removed brokers, including this one."""
    return tuple(sorted({*image.removed, broker}))
