"""Consumer configurations: decoded, checked, with defaults; and their updates. Pure.

Rules: as in ``stream_config``. Zero and null mean the default, because some clients send zeros for
what they leave open. Configurations are compared after defaults are applied.
"""

import re
from typing import Any, Final, Literal, NoReturn

import msgspec

from strandline.config import StreamConfig
from strandline.core.consumers.consumer import ConsumerPolicy
from strandline.errors import InvalidSubjectError
from strandline.record.subjects import has_wildcard, subjects_overlap, validate_subject
from strandline.servers.nats.jetstream.errors import (
    BAD_REQUEST,
    CONSUMER_NAME_IN_USE,
    EXCESSIVE_REPLICAS,
    FILTER_MISMATCH,
    NEGATIVE_REPLICAS,
    NO_REPLICAS,
    ApiError,
    ApiRejection,
    reject,
    reject_json,
)
from strandline.servers.nats.jetstream.integers import Int64
from strandline.servers.nats.jetstream.records import check_pattern
from strandline.servers.nats.jetstream.stream_config import is_asking
from strandline.servers.nats.jetstream.subjects import ApiCall
from strandline.servers.nats.jetstream.times import (
    NS_PER_MS,
    NS_PER_S,
    format_time,
    ms_of,
    parse_time,
)

ACK_WAIT_NS: Final = 30 * NS_PER_S
INACTIVE_NS: Final = 5 * NS_PER_S
ACK_PENDING: Final = 1_000
ACK_PENDING_MAX: Final = 10_000
"""The limit of ``max_ack_pending``. Pending records are stored with every change, so a higher
limit, or none, becomes this one: nats.go asks for half a million if its user sets nothing."""
HEARTBEAT_MIN_NS: Final = 100 * NS_PER_MS
WAITING: Final = 512
WAITING_MAX: Final = 10_000
FILTERS_MAX: Final = 64
MERGED_STARTS: Final = ("all", "new", "by_start_time")
"""The deliver policies that a consumer of several partitions can have."""
BACKOFFS_MAX: Final = 64
NAME_BYTES_MAX: Final = 255
METADATA_BYTES_MAX: Final = 4_096
"""The limit of metadata and description together, which are stored with every change, too."""
_NAME: Final = re.compile(r"[^\s.*>]+")
_GROUP: Final = re.compile(r"[^\s\x00-\x1f]{1,255}")
UNSUPPORTED: Final = (
    "priority_policy",
    "priority_groups",
    "priority_timeout",
    "direct",
    "sourcing",
    "sample_freq",
)
_Whole = Int64 | None
AckPolicy = Literal["none", "all", "explicit"]
DeliverPolicy = Literal[
    "all", "last", "last_per_subject", "new", "by_start_sequence", "by_start_time"
]
_STARTS: Final = {
    "all": "deliver all",
    "last": "deliver last",
    "new": "deliver new",
    "last_per_subject": "deliver last per subject",
    "by_start_sequence": "deliver by start sequence",
    "by_start_time": "deliver by start time",
}


class ConsumerConfigRequest(msgspec.Struct, frozen=True):
    """A consumer's configuration as clients send it."""

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: DeliverPolicy | None = None
    opt_start_seq: _Whole = None
    opt_start_time: str | None = None
    ack_policy: AckPolicy | None = None
    ack_wait: _Whole = None
    max_deliver: _Whole = None
    backoff: list[Int64] | None = None
    filter_subject: str | None = None
    filter_subjects: list[str] | None = None
    replay_policy: Literal["instant", "original"] | None = None
    max_waiting: _Whole = None
    max_ack_pending: _Whole = None
    headers_only: bool | None = None
    max_batch: _Whole = None
    max_expires: _Whole = None
    max_bytes: _Whole = None
    inactive_threshold: _Whole = None
    num_replicas: _Whole = None
    mem_storage: bool | None = None
    metadata: dict[str, str] | None = None
    deliver_subject: str | None = None
    deliver_group: str | None = None
    flow_control: bool | None = None
    idle_heartbeat: _Whole = None
    rate_limit_bps: _Whole = None
    pause_until: str | None = None
    priority_policy: Any = None
    priority_groups: Any = None
    priority_timeout: Any = None
    direct: Any = None
    sourcing: Any = None
    sample_freq: Any = None


class CreateConsumerRequest(msgspec.Struct, frozen=True):
    """The body of CONSUMER.CREATE."""

    stream_name: str | None = None
    config: ConsumerConfigRequest = ConsumerConfigRequest()
    action: Literal["", "create", "update"] | None = None


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A consumer's effective configuration, with JetStream's names."""

    name: str
    deliver_policy: DeliverPolicy
    ack_policy: AckPolicy
    max_deliver: int
    replay_policy: str
    num_replicas: int
    durable_name: str = ""
    description: str = ""
    opt_start_seq: int = 0
    opt_start_time: str = ""
    ack_wait: int = 0
    backoff: tuple[int, ...] = ()
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    max_waiting: int = 0
    max_ack_pending: int = 0
    headers_only: bool = False
    max_batch: int = 0
    max_expires: int = 0
    max_bytes: int = 0
    inactive_threshold: int = 0
    mem_storage: bool = False
    metadata: dict[str, str] = {}
    deliver_subject: str = ""
    deliver_group: str = ""
    flow_control: bool = False
    idle_heartbeat: int = 0
    rate_limit_bps: int = 0
    pause_until: str = ""

    @property
    def is_push(self) -> bool:
        """Whether records are sent to a subject without pulls."""
        return bool(self.deliver_subject)

    @property
    def filters(self) -> tuple[str, ...]:
        """Patterns of which one must match a record's subject; without any, all records pass."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else ())

    @property
    def policy(self) -> ConsumerPolicy:
        """The part of the settings that the consumer's core uses."""
        return ConsumerPolicy(
            acks=self.ack_policy,
            ack_wait_ms=ms_of(self.ack_wait) or ms_of(ACK_WAIT_NS),
            backoff_ms=tuple(map(ms_of, self.backoff)),
            max_deliver=max(0, self.max_deliver),
            max_ack_pending=self.max_ack_pending,
            max_waiting=self.max_waiting,
        )


FIXED: Final = {
    "deliver_policy": "deliver policy",
    "opt_start_seq": "start sequence",
    "opt_start_time": "start time",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
    "idle_heartbeat": "heart beats",
    "flow_control": "flow control",
    "mem_storage": "storage type",
    "durable_name": "durable name",
}
"""Settings that an update may not change."""


def reject_consumer(text: str) -> NoReturn:
    """Reject the configuration of a consumer.

    Raises:
        ApiRejection: always.
    """
    raise ApiRejection(ApiError(500, 10012, text))


def _refuse(number: int, text: str) -> NoReturn:
    raise ApiRejection(ApiError(400, number, text))


def consumer_config(call: ApiCall, request: CreateConsumerRequest, made_up: str) -> ConsumerConfig:
    """Return the settings that a request asks for, with defaults applied.

    Args:
        call: the parsed subject of the request.
        request: the body of the request.
        made_up: the name for a consumer whose request has none.

    Raises:
        ApiRejection: a consumer here cannot have these settings.
    """
    config = request.config
    name = _name(call, config, made_up)
    _check_filters(call, config)
    _check_supported(config)
    if config.deliver_subject:
        _check_push(config, config.deliver_subject)
    else:
        _check_pull(config)
    _check_start(config)
    _check_limits(config)
    acks = config.ack_policy or "none"
    backoff = tuple(config.backoff or ())
    ack_wait = backoff[0] if backoff else config.ack_wait or ACK_WAIT_NS
    is_durable = bool(config.durable_name)
    return ConsumerConfig(
        name=name,
        durable_name=config.durable_name or "",
        description=config.description or "",
        deliver_policy=config.deliver_policy or "all",
        opt_start_seq=config.opt_start_seq or 0,
        opt_start_time=config.opt_start_time or "",
        ack_policy=acks,
        ack_wait=0 if acks == "none" else ack_wait,
        max_deliver=max(0, config.max_deliver or 0) or -1,
        backoff=backoff,
        filter_subject=config.filter_subject or "",
        filter_subjects=tuple(config.filter_subjects or ()),
        replay_policy=config.replay_policy or "instant",
        max_waiting=0 if config.deliver_subject else config.max_waiting or WAITING,
        max_ack_pending=0
        if acks == "none"
        else _ack_pending(config.max_ack_pending or ACK_PENDING),
        headers_only=bool(config.headers_only),
        max_batch=config.max_batch or 0,
        max_expires=config.max_expires or 0,
        max_bytes=config.max_bytes or 0,
        inactive_threshold=config.inactive_threshold or (0 if is_durable else INACTIVE_NS),
        num_replicas=config.num_replicas or 0,
        mem_storage=bool(config.mem_storage),
        metadata=config.metadata or {},
        deliver_subject=config.deliver_subject or "",
        deliver_group=(config.deliver_group or "") if config.deliver_subject else "",
        flow_control=bool(config.flow_control),
        idle_heartbeat=config.idle_heartbeat or 0,
        rate_limit_bps=config.rate_limit_bps or 0,
        pause_until=_pause_until(config),
    )


def _ack_pending(asked: int | None) -> int:
    """Return the limit of pending records that applies."""
    limit = asked or ACK_PENDING
    return limit if 0 < limit < ACK_PENDING_MAX else ACK_PENDING_MAX


def _name(call: ApiCall, config: ConsumerConfigRequest, made_up: str) -> str:
    durable, name = config.durable_name or "", config.name or ""
    if call.operation == "CONSUMER.DURABLE.CREATE":
        if not durable:
            _refuse(10018, "consumer expected to be durable but a durable name was not set")
        if durable != call.consumer:
            _refuse(10017, "consumer name in subject does not match durable name in request")
    if durable and name and durable != name:
        _refuse(10132, "Consumer Durable and Name have to be equal if both are provided")
    asked = durable or name
    if call.consumer and asked and asked != call.consumer:
        _refuse(10132, "Consumer Durable and Name have to be equal if both are provided")
    if not call.consumer and durable:
        # Permissions for a name are checked by the subject, so it must contain the name.
        _refuse(10019, "consumer expected to be ephemeral but a durable name was set in request")
    found = call.consumer or asked or made_up
    if len(found.encode()) > NAME_BYTES_MAX:
        _refuse(10102, f"consumer name is too long, maximum allowed is {NAME_BYTES_MAX}")
    if "/" in found or "\\" in found:
        _refuse(10127, "Consumer name can not contain path separators")
    if not _NAME.fullmatch(found):
        _refuse(10103, "durable name can not contain '.', '*', '>'")
    return found


def _check_filters(call: ApiCall, config: ConsumerConfigRequest) -> None:
    one, several = config.filter_subject or "", config.filter_subjects or []
    if one and several:
        _refuse(10136, "consumer cannot have both FilterSubject and FilterSubjects specified")
    if call.subject:
        if several:
            _refuse(10137, "consumer with multiple subject filters cannot use subject based API")
        if one != call.subject:
            reject(FILTER_MISMATCH)
    if "" in several:
        _refuse(10139, "consumer filter in FilterSubjects cannot be empty")
    if len(several) > FILTERS_MAX:
        reject_consumer(f"more than {FILTERS_MAX} filters are not supported")
    for pattern in several or ([one] if one else []):
        check_pattern(pattern)
    for number, pattern in enumerate(several):
        if any(subjects_overlap(pattern, other) for other in several[:number]):
            _refuse(10138, "consumer subject filters cannot overlap")


def _pause_until(config: ConsumerConfigRequest) -> str:
    """Return the time until which the consumer is paused; empty if it is not."""
    text = config.pause_until or ""
    if not is_asking(text):
        return ""
    try:
        return format_time(parse_time(text))
    except ValueError as error:
        reject_json(error)


def _check_supported(config: ConsumerConfigRequest) -> None:
    """Reject settings that are not supported."""
    for field in UNSUPPORTED:
        if is_asking(getattr(config, field)):
            reject_consumer(f"{field} is not supported")


def _check_pull(config: ConsumerConfigRequest) -> None:
    """Reject settings of a pull consumer that only push consumers can have."""
    if config.idle_heartbeat:
        _refuse(10088, "consumer idle heartbeat requires a push based consumer")
    if config.flow_control:
        _refuse(10089, "consumer flow control requires a push based consumer")
    if config.rate_limit_bps:
        _refuse(10086, "consumer in pull mode can not have rate limit set")


def _check_push(config: ConsumerConfigRequest, subject: str) -> None:
    """Reject settings that a push consumer cannot have."""
    try:
        validate_subject(subject, wildcards=True)
    except InvalidSubjectError:
        _refuse(10112, "invalid push consumer deliver subject")
    if has_wildcard(subject):
        _refuse(10079, "consumer deliver subject has wildcards")
    if config.max_waiting:
        _refuse(10080, "consumer in push mode can not set max waiting")
    if (config.max_ack_pending or 0) > 0 and (config.ack_policy or "none") == "none":
        _refuse(10082, "consumer requires ack policy for max ack pending")
    if 0 < (config.idle_heartbeat or 0) < HEARTBEAT_MIN_NS:
        _refuse(10083, "consumer idle heartbeat needs to be >= 100ms")
    if config.flow_control and not config.idle_heartbeat:
        _refuse(10108, "consumer with flow control also needs heartbeats")
    if config.deliver_group and not _GROUP.fullmatch(config.deliver_group):
        reject_consumer("deliver_group is no name of a queue group")


def _check_start(config: ConsumerConfigRequest) -> None:
    """Reject a start position that contradicts the deliver policy."""
    policy = config.deliver_policy or "all"
    has = {"sequence": bool(config.opt_start_seq), "time": bool(config.opt_start_time)}
    begun = f"consumer delivery policy is {_STARTS[policy]}"
    needed = {"by_start_sequence": "sequence", "by_start_time": "time"}.get(policy)
    if needed is not None and not has[needed]:
        _refuse(10094, f"{begun}, but optional start {needed} is not set")
    for kind, is_set in has.items():
        if is_set and kind != needed:
            _refuse(10094, f"{begun}, but optional start {kind} is also set")
    if policy == "last_per_subject" and not (config.filter_subject or config.filter_subjects):
        _refuse(10094, f"{begun}, but optional filter subject is not set")
    if config.opt_start_time:
        try:
            parse_time(config.opt_start_time)
        except ValueError as error:
            _refuse(10025, f"invalid JSON: {error}")


def _check_limits(config: ConsumerConfigRequest) -> None:
    if (config.ack_wait or 0) < 0:
        _refuse(10183, "consumer ack wait needs to be positive")
    backoff, deliveries = config.backoff or [], config.max_deliver or -1
    if deliveries > 0 and len(backoff) > deliveries:
        _refuse(10116, "max deliver is required to be > length of backoff values")
    if len(backoff) > BACKOFFS_MAX or any(each <= 0 for each in backoff):
        reject_consumer(f"backoff has 1 to {BACKOFFS_MAX} durations above 0")
    if not 0 <= (config.max_waiting or 0) <= WAITING_MAX:
        reject_consumer(f"max_waiting is 1 to {WAITING_MAX} here")
    if 0 < (config.max_expires or 0) < NS_PER_MS:
        _refuse(10115, "consumer max request expires needs to be >= 1ms")
    for field in (
        "max_batch",
        "max_expires",
        "max_bytes",
        "inactive_threshold",
        "opt_start_seq",
        "idle_heartbeat",
        "rate_limit_bps",
    ):
        if (getattr(config, field) or 0) < 0:
            reject_consumer(f"{field} is negative")
    size = sum(len(k) + len(v) for k, v in (config.metadata or {}).items())
    if size + len(config.description or "") > METADATA_BYTES_MAX:
        reject_consumer(f"metadata and description are at most {METADATA_BYTES_MAX} characters")


def check_replicas(config: ConsumerConfig, stream: StreamConfig, *, is_cluster: bool) -> None:
    """Reject a number of replicas that differs from the stream's.

    Raises:
        ApiRejection: the number differs.
    """
    if config.num_replicas < 0:
        reject(NEGATIVE_REPLICAS)
    if config.num_replicas > max(1, stream.replicas):
        reject(EXCESSIVE_REPLICAS if is_cluster else NO_REPLICAS)


def check_merged(config: ConsumerConfig, stream: str, count: int) -> None:
    """Reject settings that need a common order, which several partitions do not have.

    Raises:
        ApiRejection: a setting needs an order.
    """
    # When an ordered consumer has missed a record, its client restarts it at a sequence.
    is_ordered = config.ack_policy == "none" and config.mem_storage and config.num_replicas == 1
    needs_order = {
        "a push consumer": config.is_push,
        "an ordered consumer": is_ordered,
        "ack_policy all": config.ack_policy == "all",
        f"deliver_policy {config.deliver_policy}": config.deliver_policy not in MERGED_STARTS,
        "replay_policy original": config.replay_policy == "original",
    }
    for what, is_wanted in needs_order.items():
        if is_wanted:
            names = f"{stream}:0 to {stream}:{count - 1}"
            reject(BAD_REQUEST, f"stream has {count} partitions: {what} takes one: use {names}")


def check_update(before: ConsumerConfig, after: ConsumerConfig, *, is_bound: bool = False) -> None:
    """Reject an update that changes a fixed setting.

    Args:
        before: the present settings.
        after: the requested settings.
        is_bound: whether the consumer is a push consumer that has receivers now.

    Raises:
        ApiRejection: the update changes such a setting.
    """
    for field, words in FIXED.items():
        if getattr(before, field) != getattr(after, field):
            reject_consumer(f"{words} can not be updated")
    if before.is_push != after.is_push:
        kinds = ("push", "pull") if before.is_push else ("pull", "push")
        reject_consumer("can not update {} consumer to {} based".format(*kinds))
    if before.deliver_subject != after.deliver_subject and is_bound:
        reject(CONSUMER_NAME_IN_USE)
    if before.max_waiting != after.max_waiting:
        reject_consumer("max waiting can not be updated")
