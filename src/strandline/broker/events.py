"""A bounded history of what happened to a cluster, derived from its metadata and counters.

Rules: the broker reports nothing to this module. Successive metadata images and counters are
compared, so that a broker without changes does no work. Several changes of a partition between two
observations are one event; the leader epoch shows how many elections there were. Loop thread;
``events`` returns a copy that any thread may use.
"""

from collections import Counter, deque
from collections.abc import Iterator

from strandline.api.monitoring import ClusterEvent
from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.telemetry import Telemetry
from strandline.types import BrokerId

EVENTS_MAX = 500
EVENTS_AT_ONCE_MAX = 100
"""The limit for one observation; a thousand new partitions must not push out older events."""
_Found = tuple[str, str, str]
"""The kind of event, its subject (such as ``broker 2``), and the text."""

COUNTED = {
    "corrupt_batches": ("corruption", "corrupt batches found"),
    "repaired_batches": ("corruption", "corrupt batches repaired from another replica"),
    "failed_repairs": ("corruption", "answers of replicas did not repair the corruption"),
    "disk_full_writes": ("storage", "writes failed for lack of space"),
    "journal_poisoned": ("storage", "failure of the storage: nothing is stored until it reopens"),
    "nats_server_restarts": ("storage", "restarts of the embedded nats-server"),
    "group_members_expired": ("group", "consumer group members expired"),
}
"""The counters whose growth is an event: its kind and text."""


class EventLog:
    """The newest events that one broker noticed."""

    def __init__(self) -> None:
        self._events: deque[ClusterEvent] = deque(maxlen=EVENTS_MAX)
        self._image: MetadataImage | None = None
        self._controller: BrokerId | None = None
        self._counts: dict[str, float] = {}

    def events(self) -> list[ClusterEvent]:
        """Return the events, oldest first; any thread."""
        return list(self._events)

    def observe_image(
        self, image: MetadataImage, controller: BrokerId | None, *, now_ns: int
    ) -> None:
        """Note what has changed in the metadata since the last call."""
        before, self._image = self._image, image
        found = []
        if controller != self._controller:
            found.append(("controller", "", _controller_text(self._controller, controller)))
            self._controller = controller
        if before is not None and before is not image:
            found += _changed_brokers(before, image)
            found += _changed_streams(before, image)
        self._add(found, now_ns)

    def observe_counters(self, telemetry: Telemetry, rejects: Counter[str], *, now_ns: int) -> None:
        """Note counters that have grown since the last call."""
        now: dict[str, float] = {name: getattr(telemetry, name) for name in COUNTED}
        now |= {f"rejects {code}": count for code, count in rejects.copy().items()}
        now["quota"] = sum(telemetry.quota_rejections.copy().values())
        before, self._counts = self._counts, now
        found: list[_Found] = []
        for name, count in now.items():
            more = int(count - before.get(name, 0))
            if more > 0:
                found.append(_counted(name, more))
        self._add(found, now_ns)

    def _add(self, found: list[_Found], now_ns: int) -> None:
        left = len(found) - EVENTS_AT_ONCE_MAX
        if left > 0:
            found = [*found[:EVENTS_AT_ONCE_MAX], ("stream", "", f"{left:,} more changes at once")]
        self._events.extend(
            ClusterEvent(at_ns=now_ns, kind=kind, about=about, text=text)
            for kind, about, text in found
        )


def _counted(name: str, more: int) -> _Found:
    if name == "quota":
        return "refusal", "", f"{more:,} requests rejected because of a quota"
    if name.startswith("rejects "):
        return "refusal", "", f"{more:,} records rejected: {name.removeprefix('rejects ')}"
    kind, text = COUNTED[name]
    return kind, "", f"{more:,} {text}"


def _controller_text(before: BrokerId | None, now: BrokerId | None) -> str:
    if now is None:
        return f"there is no controller now; it was broker {before}"
    return f"broker {now} became the controller"


def _changed_brokers(before: MetadataImage, now: MetadataImage) -> Iterator[_Found]:
    for number, broker in now.brokers.items():
        old, about = before.brokers.get(number), f"broker {number}"
        if old is broker:
            continue
        if old is None:
            yield "broker", about, "joined the cluster"
        elif old.state != broker.state:
            yield "broker", about, f"was {old.state}, is {broker.state}"
        elif old.incarnation != broker.incarnation:
            yield "broker", about, "restarted"
    for number in before.brokers.keys() - now.brokers.keys():
        yield "broker", f"broker {number}", "was removed from the cluster"


def _changed_streams(before: MetadataImage, now: MetadataImage) -> Iterator[_Found]:
    for name, stream in now.streams.items():
        old = before.streams.get(name)
        if old is stream:
            continue
        if old is None or old.created_ns != stream.created_ns:
            count = len(stream.partitions)
            yield "stream", name, f"created with {count:,} partition{'s' if count > 1 else ''}"
            continue
        if len(stream.partitions) > len(old.partitions):
            yield "stream", name, f"grew to {len(stream.partitions):,} partitions"
        pairs = zip(old.partitions, stream.partitions, strict=False)  # new ones were noted above
        for number, (was, partition) in enumerate(pairs):
            if was is not partition:
                yield from _changed_partition(f"{name}/{number}", was, partition)
    for name in before.streams.keys() - now.streams.keys():
        yield "stream", name, "deleted"


def _changed_partition(about: str, was: PartitionImage, now: PartitionImage) -> Iterator[_Found]:
    if now.unclean_epoch != was.unclean_epoch:
        yield "election", about, f"broker {now.leader} was made leader although records may be lost"
    elif now.leader_epoch != was.leader_epoch or now.leader != was.leader:
        yield "election", about, _election_text(was, now)
    for broker in sorted(set(was.isr) - set(now.isr)):
        yield "isr", about, f"broker {broker} fell out of sync"
    for broker in sorted(set(now.isr) - set(was.isr)):
        yield "isr", about, f"broker {broker} came into sync"
    if now.is_moving and (now.adding, now.removing) != (was.adding, was.removing):
        yield "move", about, f"moves to {_listed(now.target)}"
    elif was.is_moving and not now.is_moving:
        yield "move", about, f"moved; replicas are {_listed(now.replicas)}"


def _election_text(was: PartitionImage, now: PartitionImage) -> str:
    if now.leader is None:
        return f"lost its leader, broker {was.leader}"
    if now.leader == was.leader:
        return f"broker {now.leader} leads again, epoch {now.leader_epoch}"
    return f"broker {now.leader} leads, epoch {now.leader_epoch}; before, {_named(was.leader)}"


def _named(broker: BrokerId | None) -> str:
    return "nobody" if broker is None else f"broker {broker}"


def _listed(brokers: tuple[BrokerId, ...]) -> str:
    return "brokers " + ", ".join(map(str, brokers))
