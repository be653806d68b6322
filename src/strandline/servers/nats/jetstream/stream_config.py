"""Settings of streams, converted between JetStream's and Strandline's. Pure.

Rules: an answer shows the effective settings, not the requested ones. A setting that a stream here
cannot have is rejected by name, unless it is empty: zero, null, false and an empty value mean the
same. Settings that always apply (``allow_direct``, ``deny_delete``, and with a limit for each
subject ``allow_rollup_hdrs``) may be requested or not. Unknown settings are ignored, as nats-server
does unless it is in strict mode.
"""

import re
from typing import Any, Final, Literal

import msgspec

from strandline.broker.internal import is_internal
from strandline.config import StreamConfig
from strandline.servers.nats.jetstream.errors import (
    NEGATIVE_REPLICAS,
    NO_REPLICAS,
    reject,
    reject_config,
)
from strandline.servers.nats.jetstream.integers import INT64_MAX, Int64
from strandline.servers.nats.jetstream.times import NS_PER_MS, ZERO_TIME, ms_of
from strandline.servers.nats.jetstream.views import JetStreamView, shown_name

NAME_BYTES_MAX: Final = 255
AGE_NS_MIN: Final = 100 * NS_PER_MS
WINDOW_NS: Final = 120_000 * NS_PER_MS
"""How long message ids are remembered by default."""
UNLIMITED: Final = -1
OWN_METADATA: Final = ("strandline.", "_nats.")
"""Prefixes of metadata that answers add and clients may send back."""
_NAME: Final = re.compile(r"[^\s.*>/\\]+")
HISTORY: Final = " (a bucket's history)"
UNSUPPORTED: Final = (
    "placement",
    "mirror",
    "sources",
    "subject_transform",
    "republish",
    "sealed",
    "deny_purge",
    "mirror_direct",
    "discard_new_per_subject",
    "consumer_limits",
    "template_owner",
    "subject_delete_marker_ttl",
    "allow_msg_counter",
    "allow_msg_schedules",
    "allow_batched",
    "persist_mode",
)
"""Settings that are accepted only if they are empty."""

_Whole = Int64 | None


class StreamConfigRequest(msgspec.Struct, frozen=True):
    """A stream's configuration as clients send it."""

    name: str = ""
    subjects: list[str] | None = None
    retention: Literal["limits", "interest", "workqueue"] | None = None
    discard: Literal["old", "new"] | None = None
    storage: Literal["file", "memory"] | None = None
    compression: Literal["none", "s2"] | None = None
    max_consumers: _Whole = None
    max_msgs: _Whole = None
    max_bytes: _Whole = None
    max_age: _Whole = None
    max_msgs_per_subject: _Whole = None
    max_msg_size: _Whole = None
    num_replicas: _Whole = None
    duplicate_window: _Whole = None
    first_seq: _Whole = None
    no_ack: bool | None = None
    allow_direct: bool | None = None
    deny_delete: bool | None = None
    metadata: dict[str, str] | None = None
    placement: Any = None
    mirror: Any = None
    sources: Any = None
    subject_transform: Any = None
    republish: Any = None
    sealed: Any = None
    deny_purge: Any = None
    allow_rollup_hdrs: bool | None = None
    mirror_direct: Any = None
    discard_new_per_subject: Any = None
    consumer_limits: Any = None
    description: str | None = None
    template_owner: Any = None
    allow_msg_ttl: Any = None
    subject_delete_marker_ttl: Any = None
    allow_msg_counter: Any = None
    allow_atomic: Any = None
    allow_msg_schedules: Any = None
    allow_batched: Any = None
    persist_mode: Any = None


class JetStreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's effective configuration, with JetStream's names."""

    name: str
    subjects: tuple[str, ...]
    retention: str = "limits"
    max_consumers: int = UNLIMITED
    max_msgs: int = UNLIMITED
    max_bytes: int = UNLIMITED
    max_age: int = 0
    max_msgs_per_subject: int = UNLIMITED
    max_msg_size: int = UNLIMITED
    discard: str = "old"
    storage: str = "file"
    num_replicas: int = 1
    no_ack: bool = False
    duplicate_window: int = 0
    compression: str = "none"
    allow_direct: bool = True
    mirror_direct: bool = False
    sealed: bool = False
    deny_delete: bool = True
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    allow_atomic: bool = True
    consumer_limits: dict[str, int] = {}
    allow_msg_ttl: bool = False
    description: str | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] = {}


def jetstream_config(config: StreamConfig, view: JetStreamView | None = None) -> JetStreamConfig:
    """Return a stream's settings with JetStream's names.

    Args:
        config: the settings.
        view: the view to show; None: a stream of one partition, which need not exist.
    """
    metadata: dict[str, str] = {"strandline.acks": config.acks_in_force}
    if view is not None and len(view.stream.partitions) > 1:
        metadata["strandline.partitions"] = str(len(view.stream.partitions))
        if view.number is not None:
            metadata["strandline.partition"] = str(view.number)
    return JetStreamConfig(
        name=view.name if view is not None else shown_name(config.name),
        subjects=(config.subject,),
        max_msgs=config.retention_records or UNLIMITED,
        max_bytes=config.retention_bytes or UNLIMITED,
        max_age=_ns(config.retention_age_ms),
        num_replicas=config.replicas,
        no_ack=not config.pub_ack,
        duplicate_window=_ns(config.dedup_window_ms),
        max_msgs_per_subject=config.max_records_per_subject or UNLIMITED,
        discard="new" if is_bucket(config) else "old",
        allow_rollup_hdrs=config.max_records_per_subject > 0,
        allow_atomic=config.pub_ack,
        description=config.description or msgspec.UNSET,
        metadata=metadata,
    )


def is_bucket(config: StreamConfig) -> bool:
    """Return whether a key-value client created a stream; it then asks for ``discard: new``.

    Without limits for the whole stream, that is equal to ``old``.
    """
    bucket = config.name.removeprefix("KV_")
    return bucket != config.name and config.subject == f"$KV.{bucket}.>"


def _ns(duration_ms: int) -> int:
    """Return a duration in nanoseconds, limited to what clients can read as int64."""
    return min(duration_ms * NS_PER_MS, INT64_MAX)


def stream_config(request: StreamConfigRequest, *, is_cluster: bool) -> StreamConfig:
    """Return the settings of the stream that a request asks for.

    Raises:
        ApiRejection: a stream here cannot have a setting, which the error names.
    """
    _check_name(request.name)
    _check_supported(request)
    subjects = request.subjects or [request.name]
    if len(subjects) > 1:
        reject_config(
            f"a stream has one subject here, which may contain wildcards; create one for each of "
            f"{', '.join(subjects)}"
        )
    [subject] = subjects
    if subject == ">" and not request.no_ack:
        reject_config("capturing all subjects requires no-ack to be true")
    replicas = request.num_replicas or 1
    if replicas < 0:
        reject(NEGATIVE_REPLICAS)
    if replicas > 1 and not is_cluster:
        reject(NO_REPLICAS)
    age_ns = request.max_age or 0
    if 0 < age_ns < AGE_NS_MIN:
        reject_config("max age needs to be >= 100ms")
    return StreamConfig(
        name=request.name.replace("=", "."),
        subject=subject,
        replicas=replicas,
        min_isr=replicas // 2 + 1,  # the number of replicas for which JetStream waits
        pub_ack=not request.no_ack,
        retention_records=_limit(request.max_msgs),
        retention_bytes=_limit(request.max_bytes),
        retention_age_ms=ms_of(_limit(request.max_age)),
        max_records_per_subject=_limit(request.max_msgs_per_subject),
        description=request.description or "",
        dedup_window_ms=ms_of(_window_ns(request)),
    )


def _check_name(name: str) -> None:
    if len(name.encode()) > NAME_BYTES_MAX:
        reject_config(f"stream name is too long, maximum allowed is {NAME_BYTES_MAX}")
    if not _NAME.fullmatch(name):
        reject_config(
            "stream name is required and can not contain '.', '*', '>', '\\', '/' or white space"
        )
    if ":" in name:
        reject_config("':' in a stream's name stands before the number of a partition")
    if is_internal(name):
        reject_config("stream names that begin with '__' are the broker's own")


def _check_supported(request: StreamConfigRequest) -> None:
    for field in UNSUPPORTED:
        if is_asking(getattr(request, field)):
            reject_config(f"{field} is not supported; leave it out")
    if request.retention in ("interest", "workqueue"):
        reject_config(
            f"retention {request.retention} is not supported: acknowledged stays stored; ask for "
            "limits"
        )
    if request.storage == "memory":
        reject_config("storage memory is not supported: streams are files; ask for file")
    if request.compression == "s2":
        reject_config(
            "compression s2 is not supported; ask for none, or create the stream with 'strandline "
            "stream create --compression zstd'"
        )
    if (request.first_seq or 0) > 1:
        reject_config(f"first_seq {request.first_seq} is not supported; leave it out")
    if not _limit(request.max_msgs_per_subject):
        if request.allow_rollup_hdrs:
            reject_config("allow_rollup_hdrs needs max_msgs_per_subject")
        # nats.py requests it for every new bucket. The answer shows that it is off, and a publish
        # with a TTL is rejected.
        if request.allow_msg_ttl:
            reject_config("allow_msg_ttl is not supported; leave it out")
    for field in ("max_msg_size", "max_consumers"):
        if limit := _limit(getattr(request, field)):
            reject_config(f"{field} {limit} is not supported; leave it out")
    for field in ("max_msgs", "max_bytes"):
        if request.discard == "new" and (limit := _limit(getattr(request, field))):
            reject_config(
                f"{field} {limit} with discard new, as buckets have it, is not supported: at a "
                f"limit the oldest records are deleted, and none is refused; leave {field} out, or "
                "ask for discard old"
            )
    for name in request.metadata or ():
        if not name.startswith(OWN_METADATA):
            reject_config(f"metadata is not supported; leave {name!r} out")


def is_asking(value: object) -> bool:
    """Return whether a setting is not empty, so that it asks for something."""
    if isinstance(value, dict):
        return any(map(is_asking, value.values()))
    return bool(value) and value != ZERO_TIME


def _limit(value: int | None) -> int:
    """Return a limit; 0 for none, which requests write as 0, as -1 or leave out."""
    return max(0, value or 0)


def _window_ns(request: StreamConfigRequest) -> int:
    """Return how long message ids are to be remembered."""
    window_ns, age_ns = _limit(request.duplicate_window), _limit(request.max_age)
    if not window_ns:
        return min(WINDOW_NS, age_ns or WINDOW_NS)
    if age_ns and window_ns > age_ns:
        reject_config("duplicates window can not be larger then max age")
    return window_ns


def changed_settings(before: JetStreamConfig, after: JetStreamConfig) -> list[str]:
    """Return the settings that differ, each with both values."""
    return [
        f"{name}{HISTORY if name == 'max_msgs_per_subject' else ''} from {old} to {new}"
        for name in before.__struct_fields__
        if name != "metadata" and (old := getattr(before, name)) != (new := getattr(after, name))
    ]
