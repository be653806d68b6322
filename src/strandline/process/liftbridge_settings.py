"""Translation of Liftbridge's settings, from its files and flags, into Strandline's.

Rules: keys are lower case in this module, and every key of Liftbridge 1.9 is known. A setting that
Strandline cannot follow is rejected; the error names the alternative. A setting that only tunes
Liftbridge's internals has no effect. An unknown key is rejected, as in Liftbridge. Pure, except for
reading the file.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from strandline.errors import InvalidConfigError
from strandline.process.master_keys import LIFTBRIDGE_VARIABLE
from strandline.process.settings import Values
from strandline.process.yaml_file import read_yaml

T = TypeVar("T")

DEFAULT_PORT: Final = 9292
DEFAULT_NATS: Final = "127.0.0.1", 4222
"""The address of Liftbridge's default nats-server."""
SEGMENT_BYTES_MIN: Final = 64 << 10
PREFIX: Final = "LIFTBRIDGE_"
SERVICE_ADDRESS: Final = ("tcp://", "udp://")
_UNITS_MS: Final = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1, "s": 1000, "m": 60_000, "h": 3.6e6}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_LEVELS: Final = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}


def duration_ms(value: Any) -> int:
    """Return the milliseconds of a duration in Go's notation: ``15s``, ``1h30m``, 0.

    Raises:
        InvalidConfigError: the value is not a duration.
    """
    text = str(value)
    if text == "0":
        return 0
    if not re.fullmatch(rf"(?:{_PART.pattern})+", text):
        raise InvalidConfigError(f"{text!r} is not a duration such as 15s or 168h")
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)))


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(f"{value!r} is not a whole number") from error


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise InvalidConfigError(f"must be true or false, got {value!r}")


def _list(value: Any) -> list[str]:
    items = value if isinstance(value, list) else str(value).split(",")
    return [str(item).strip() for item in items if str(item).strip()]


def _level(value: Any) -> str:
    if value not in _LEVELS:
        raise InvalidConfigError(f"{value!r} is not a log level; levels are {', '.join(_LEVELS)}")
    return _LEVELS[value]


_TAKEN: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    # Liftbridge's key → Strandline's key, and the conversion of the value
    "data.dir": ("data_dir", str),
    "logging.level": ("log_level", _level),
    "tls.cert": ("tls.certificate", str),
    "tls.key": ("tls.key", str),
    "tls.client.auth.ca": ("tls.authority", str),
    "nats.servers": ("nats.servers", _list),
    "streams.retention.max.bytes": ("grpc.streams.retention_bytes", _number),
    "streams.retention.max.messages": ("grpc.streams.retention_records", _number),
    "streams.retention.max.age": ("grpc.streams.retention_age_ms", duration_ms),
    "streams.cleaner.interval": ("cleaner_interval_ms", duration_ms),
    "streams.segment.max.bytes": (
        "grpc.streams.segment_bytes",
        lambda value: max(SEGMENT_BYTES_MIN, _number(value)),
    ),
    "streams.segment.max.age": ("grpc.streams.segment_age_ms", duration_ms),
    "streams.compact.enabled": ("grpc.streams.compact", _flag),
    "streams.auto.pause.time": ("grpc.streams.auto_pause_ms", duration_ms),
    "streams.auto.pause.disable.if.subscribers": (
        "grpc.streams.auto_pause_if_read",
        lambda value: not _flag(value),
    ),
    "streams.concurrency.control": ("grpc.streams.optimistic_concurrency", _flag),
    "streams.encryption": ("grpc.streams.encryption", _flag),
    "clustering.namespace": ("grpc.namespace", str),
    "clustering.min.insync.replicas": ("grpc.streams.min_isr", _number),
    "clustering.replication.max.bytes": ("limits.record_bytes", _number),
    "activity.stream.enabled": ("grpc.activity", _flag),
    "cursors.stream.partitions": ("grpc.cursor_partitions", _number),
    "groups.consumer.timeout": ("grpc.consumer_timeout_ms", duration_ms),
    "groups.coordinator.timeout": ("grpc.coordinator_timeout_ms", duration_ms),
}
_WITHOUT_EFFECT: Final = frozenset(
    {
        "metadata.cache.max.age",
        "batch.max.messages",
        "batch.max.time",
        "logging.recovery",
        "logging.raft",
        "logging.nats",
        "streams.compact.max.goroutines",
        "clustering.server.id",
        "clustering.raft.snapshot.retain",
        "clustering.raft.snapshot.threshold",
        "clustering.raft.cache.size",
        "clustering.raft.bootstrap.seed",
        "clustering.raft.max.quorum.size",
        "clustering.replica.max.lag.time",
        "clustering.replica.max.leader.timeout",
        "clustering.replica.max.idle.wait",
        "clustering.replica.fetch.timeout",
        "activity.stream.publish.timeout",
        "activity.stream.publish.ack.policy",
        "cursors.stream.replication.factor",
        "cursors.stream.auto.pause.time",
        "telemetry.enabled",
        "telemetry.interval.seconds",
    }
)
_REFUSED: Final = {
    "nats.embedded.config": "the nats-server started has settings of its own; use nats.servers",
    "nats.user": "write user and password into nats.servers: nats://user:password@host",
    "nats.password": "write user and password into nats.servers: nats://user:password@host",
    "nats.tls.cert": "client certificates towards NATS are not built",
    "nats.tls.key": "client certificates towards NATS are not built",
    "nats.tls.ca": "set nats.authority of a Strandline file and use 'strandline serve'",
    "clustering.raft.bootstrap.peers": "clusters have settings of ours: see docs/cluster.md",
}
_REFUSED_IF_ON: Final = {
    "tls.client.authz.enabled": "policy files are not read; see docs/security.md for rules",
}
_BESIDE: Final = frozenset(
    {
        "listen",
        "host",
        "port",
        "nats.embedded",
        "tls.client.auth.enabled",
        "tls.client.authz.model",
        "tls.client.authz.policy",
    }
)
"""Keys that are read together with others."""


def read_liftbridge_file(file: Path) -> Values:
    """Return the settings in a Liftbridge file with dotted keys, however they are nested.

    Raises:
        InvalidConfigError: the file is unreadable, or not YAML.
    """
    return _flat(read_yaml(file), "")


def _flat(values: Mapping[str, Any], prefix: str) -> Values:
    found: Values = {}
    for key, value in values.items():
        path = f"{prefix}{str(key).lower()}"  # Liftbridge accepts keys in any case
        if isinstance(value, Mapping):
            found |= _flat(value, f"{path}.")
        else:
            found[path] = value
    return found


def settings_in_environment(environ: Mapping[str, str]) -> tuple[Values, list[str]]:
    """Return the settings in LIFTBRIDGE_* variables, and the variables that are no settings.

    LIFTBRIDGE_DATA_DIR is ``data.dir``; LIFTBRIDGE_DATA.DIR is accepted, too. Variables that
    Kubernetes sets for a service named liftbridge (LIFTBRIDGE_PORT=tcp://…) are no settings.
    """
    found: Values = {}
    unknown: list[str] = []
    known = {*_TAKEN, *_WITHOUT_EFFECT, *_REFUSED, *_REFUSED_IF_ON, *_BESIDE}
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable == LIFTBRIDGE_VARIABLE:
            continue
        key = variable.removeprefix(PREFIX).lower().replace("_", ".")
        if key not in known or value.startswith(SERVICE_ADDRESS):
            unknown.append(variable)
        else:
            found[key] = value
    return found, unknown


def translated(settings: Mapping[str, Any]) -> Values:
    """Translate Liftbridge's dotted settings into nested ones of Strandline, with its defaults.

    Raises:
        InvalidConfigError: a setting is unknown or unsupported, or a value is wrong.
    """
    found: Values = {}
    _put(found, "grpc.cursor_partitions", 0)
    _put(found, "grpc.streams.retention_age_ms", duration_ms("168h"))
    _listen(found, settings)
    _check_one_server(settings)
    for key, value in settings.items():
        _refuse(key, value)
        if key not in _TAKEN:
            continue
        ours, read = _TAKEN[key]
        _put(found, ours, _read(key, value, read))
    is_verified = _is_on(settings, "tls.client.auth.enabled")
    if is_verified != ("tls.client.auth.ca" in settings):
        missing = "ca" if is_verified else "enabled"
        raise InvalidConfigError(
            "tls.client.auth.enabled and tls.client.auth.ca go together; set "
            f"tls.client.auth.{missing}, too"
        )
    return found


def _read(key: str, value: Any, read: Callable[[Any], T]) -> T:
    """Read a value; add its key to the error."""
    try:
        return read(value)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{key}: {error.message}") from error


def _is_on(settings: Mapping[str, Any], key: str) -> bool:
    return _read(key, settings.get(key, False), _flag)


def _listen(found: Values, settings: Mapping[str, Any]) -> None:
    """Set the address of the API's listener, and the address advertised to clients.

    The broker listens on ``listen``, and advertises ``host`` and ``port``. Without ``listen`` it
    also listens on ``host`` and ``port``. Other listeners are not affected.
    """
    host, port = str(settings.get("host", "")), DEFAULT_PORT
    if "port" in settings:
        port = _read("port", settings["port"], _number)
    if host:
        _put(found, "grpc.advertised_host", host)
    if "listen" in settings:
        bound, _, bound_port = str(settings["listen"]).rpartition(":")
        if not bound or not bound_port.isdigit():
            raise InvalidConfigError(
                f"listen: {settings['listen']!r} is not host:port; write e.g. 0.0.0.0:9292"
            )
        if host:
            _put(found, "grpc.advertised_port", port)
        host, port = bound.strip("[]"), int(bound_port)
    if host:
        _put(found, "grpc.host", host)
    _put(found, "grpc.port", port)


def _check_one_server(settings: Mapping[str, Any]) -> None:
    """Reject an embedded nats-server together with external ones: publishers might use either."""
    if _is_on(settings, "nats.embedded") and settings.get("nats.servers"):
        raise InvalidConfigError(
            "nats.embedded and nats.servers contradict each other; keep nats.servers "
            f"({settings['nats.servers']}) for your own servers, nats.embedded for one of ours"
        )


def _refuse(key: str, value: Any) -> None:
    """Raise the error for a setting that is unknown or unsupported."""
    if key in _REFUSED:
        raise InvalidConfigError(f"{key}: {_REFUSED[key]}")
    if key in _REFUSED_IF_ON:
        if _read(key, value, _flag):
            raise InvalidConfigError(f"{key}: {_REFUSED_IF_ON[key]}")
        return
    if key not in _TAKEN and key not in _WITHOUT_EFFECT and key not in _BESIDE:
        raise InvalidConfigError(f'Unknown configuration setting "{key}"')


def _put(values: Values, path: str, value: Any) -> None:
    """Set a dotted key of nested values."""
    *sections, last = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value
