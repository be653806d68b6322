"""Loading of a broker's settings: a YAML file, then the environment, then flags; the last wins.

Rules: each source is checked alone, so that an error can name its source. An unknown key is
rejected with a suggestion, never ignored. A variable is ``STRANDLINE_`` and the key in capitals,
sections joined by two underscores: ``nats.port`` is ``STRANDLINE_NATS__PORT``. This module knows
which values are impossible, and nothing else about the settings.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.structs

from strandline.config import (
    AuthConfig,
    BrokerConfig,
    ClusterConfig,
    TlsConfig,
    check_known_keys,
    decode_config,
    misfit_text,
)
from strandline.errors import InvalidConfigError
from strandline.security.principal import check_user_name
from strandline.security.tokens import BOOTSTRAP_CHARACTERS_MIN

ENVIRON_PREFIX: Final = "STRANDLINE_"
ENVIRON_OTHERS: Final = frozenset(
    {
        "STRANDLINE_SERVER",
        "STRANDLINE_CONFIG",
        "STRANDLINE_PURE_PYTHON",
        "STRANDLINE_CA",
        "STRANDLINE_CERTIFICATE",
        "STRANDLINE_KEY",
        "STRANDLINE_ENCRYPTION_KEY",
        "STRANDLINE_TOKEN",
        "STRANDLINE_REGISTRY_AUTH",
    }
)
"""Variables that are no broker settings: the CLI and clients read them."""
ENVIRON_KUBERNETES: Final = re.compile(r"STRANDLINE_(SERVICE_(HOST|PORT)|PORT)(_.*)?")
"""Variables that Kubernetes sets for a service named ``strandline``; not settings."""
OF_JETSTREAM: Final = ("API", "ACK", "FC", "EVENT")
"""The words that follow ``$JS.`` in JetStream's subjects."""
PORT_MAX: Final = 65_535
CLUSTER_NAME_MAX: Final = 128
NUMBER_MAX: Final = 1 << 53
"""Larger sizes and times are typing errors; JSON of every language can hold this number."""

Values = dict[str, Any]


def load_settings(
    file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]
) -> BrokerConfig:
    """Read and check a broker's settings.

    Args:
        file: a YAML file, or ``None``.
        environ: usually ``os.environ``; only ``STRANDLINE_*`` is used.
        overrides: a nested mapping from flags; ``None`` means that the flag was not given.

    Raises:
        InvalidConfigError: a setting is wrong; the message names source and key, and says what to
            do.
    """
    values: Values = {}
    if file is not None:
        _merge(values, read_settings_file(file))
    _merge(values, read_environment(environ))
    _merge(values, _checked(_without_none(overrides), "flags"))
    config = decode_config(values, BrokerConfig)
    _check_values(config)
    return config


def read_settings_file(file: Path) -> Values:
    """Return the checked values of a YAML file.

    Raises:
        InvalidConfigError: the file is unreadable, not a YAML mapping, or has a wrong key or value.
    """
    from strandline.process.yaml_file import read_yaml  # 2 MiB that few brokers need

    return _checked(read_yaml(file), str(file))


def read_environment(environ: Mapping[str, str]) -> Values:
    """Return the checked values of the ``STRANDLINE_*`` variables.

    Raises:
        InvalidConfigError: a variable is wrong; the message names it.
    """
    values: Values = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRON_PREFIX) or variable in ENVIRON_OTHERS:
            continue
        if ENVIRON_KUBERNETES.fullmatch(variable):
            continue
        keys = variable.removeprefix(ENVIRON_PREFIX).lower().split("__")
        value = _typed(keys, text, variable)
        for key in reversed(keys):
            value = {key: value}
        _merge(values, value)
    return _checked(values, "environment")


def flat_settings(config: msgspec.Struct, prefix: str = "") -> dict[str, Any]:
    """Return every setting of ``config`` by its dotted key."""
    keys: dict[str, Any] = {}
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if isinstance(value, msgspec.Struct):
            keys |= flat_settings(value, f"{prefix}{name}.")
        else:
            keys[prefix + name] = value
    return keys


def _typed(keys: list[str], text: str, variable: str) -> Any:
    """Convert the text of a variable to the type of its field."""
    kind: Any = BrokerConfig
    for depth, key in enumerate(keys):
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        if key not in fields:
            path = ".".join(keys[:depth]) + "." if depth else ""
            try:
                check_known_keys({key: text}, kind, path=path)
            except InvalidConfigError as error:
                raise InvalidConfigError(f"{variable}: {error.message}") from error
        kind = fields[key]
        is_last = depth == len(keys) - 1
        if _is_section(kind) == is_last:
            advice = "a section: add __ and a key" if is_last else f"not a section: '{key}' ends it"
            raise InvalidConfigError(f"{variable}: {'.'.join(keys[: depth + 1])} is {advice}")
    raw: Any = text
    if kind == list[str]:
        raw = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        why = misfit_text(error, raw, name=".".join(keys))
        raise InvalidConfigError(f"{variable}: {why}") from error


def _checked(values: Values, source: str) -> Values:
    try:
        decode_config(values, BrokerConfig)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{source}: {error.message}") from error
    return values


def _merge(into: Values, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _without_none(values: Mapping[str, Any]) -> Values:
    kept: Values = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            kept[key] = _without_none(value)
        elif value is not None:
            kept[key] = value
    return kept


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _check_values(config: BrokerConfig) -> None:
    """Reject values that are out of range or contradict each other."""
    taken: dict[int, str] = {}
    ports = {
        "flight_port": (config.flight_port, 0),
        "http_port": (config.http_port, -1),
        "nats.port": (config.nats.port, 0),
        "nats.ingest_port": (config.nats.ingest_port, -1),
        "grpc.port": (config.grpc.port, -1),
        "grpc.beam_port": (config.grpc.beam_port, -1),
    }
    if config.cluster.is_on:
        ports["cluster.peer_port"] = (config.cluster.peer_port, 0)
    for key, (port, lowest) in ports.items():
        if not lowest <= port <= PORT_MAX:
            raise InvalidConfigError(f"{key} is {port}; a port is {lowest} to {PORT_MAX}")
        if port > 0 and port in taken:
            raise InvalidConfigError(
                f"{key} and {taken[port]} are both {port}; give each a port of its own"
            )
        taken[port] = key
    for key, value in flat_settings(config).items():
        if key.endswith(("_bytes", "_records", "_ms")):
            lowest = 0 if key.startswith("grpc.streams.") else 1  # for these, 0 means no limit
            if value < lowest:
                raise InvalidConfigError(f"{key} is {value}; it must be at least {lowest}")
            if value > NUMBER_MAX:
                raise InvalidConfigError(f"{key} is {value}; it must be at most {NUMBER_MAX}")
    _check_nats(config)
    _check_tls(config.tls)
    _check_auth(config.auth, config)
    _check_cluster(config.cluster)
    if not config.host:
        raise InvalidConfigError("host is empty; 0.0.0.0 listens on every address of this machine")
    if not config.data_dir:
        raise InvalidConfigError("data_dir is empty; name a directory")
    if not 0 <= config.scrub_bytes_per_s <= NUMBER_MAX:
        raise InvalidConfigError(
            f"scrub_bytes_per_s is {config.scrub_bytes_per_s}; it must be a number of bytes, and 0 "
            "turns it off"
        )
    if not 0 <= config.cluster.move_bytes_per_s <= NUMBER_MAX:
        raise InvalidConfigError(
            f"cluster.move_bytes_per_s is {config.cluster.move_bytes_per_s}; it must be a number "
            "of bytes, and 0 means no limit"
        )
    if config.limits.record_bytes > config.limits.batch_bytes:
        raise InvalidConfigError(
            f"limits.record_bytes is {config.limits.record_bytes}, more than limits.batch_bytes, "
            f"{config.limits.batch_bytes}; raise the latter"
        )


def _check_nats(config: BrokerConfig) -> None:
    """Reject settings of the JetStream API at the user's own NATS servers that cannot work."""
    nats = config.nats
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", nats.domain) or nats.domain in OF_JETSTREAM:
        raise InvalidConfigError(
            f"nats.domain is {nats.domain!r}; it is 1 to 64 letters, digits, '-' or '_', and none "
            f"of {', '.join(OF_JETSTREAM)}"
        )
    if nats.leafnodes and not nats.servers:
        raise InvalidConfigError(
            "nats.leafnodes belongs to servers of your own: set nats.servers, or remove it"
        )
    if nats.leafnodes and config.auth.enabled:
        raise InvalidConfigError(
            "auth.enabled checks who reads, and your own nats-server does not ask the broker about "
            "users of the JetStream API: remove nats.leafnodes"
        )


def _check_tls(tls: TlsConfig) -> None:
    """Reject TLS settings that would silently use clear text or leave clients unverified."""
    if bool(tls.certificate) != bool(tls.key):
        missing = "certificate" if tls.key else "key"
        raise InvalidConfigError(
            f"TLS needs both tls.certificate and tls.key; set tls.{missing}, too"
        )
    if tls.authority and not tls.certificate:
        raise InvalidConfigError(
            "tls.authority asks clients for certificates; that needs TLS: set "
            "tls.certificate and tls.key"
        )


def _check_auth(auth: AuthConfig, config: BrokerConfig) -> None:
    """Reject access settings that would check nothing, or lock out every administrator."""
    has_token = bool(auth.admin_token or auth.admin_token_file)
    if not auth.enabled:
        if has_token or auth.admins:
            raise InvalidConfigError("other keys of auth need auth.enabled; set it, or remove them")
        return
    if auth.admin_token and auth.admin_token_file:
        raise InvalidConfigError("give auth.admin_token or auth.admin_token_file, not both")
    if not has_token and not (auth.admins and config.tls.authority):
        raise InvalidConfigError(
            "auth.enabled leaves no administrator: set auth.admin_token_file, or auth.admins with "
            "tls.authority"
        )
    if 0 < len(auth.admin_token) < BOOTSTRAP_CHARACTERS_MIN:
        raise InvalidConfigError(
            f"auth.admin_token has fewer than {BOOTSTRAP_CHARACTERS_MIN} characters; make one with "
            "'openssl rand -hex 32'"
        )
    for name in auth.admins:
        check_user_name(name)
    if config.cluster.nats_peers and not config.cluster.nats_secret_file:
        raise InvalidConfigError(
            "auth.enabled checks who publishes, and cluster.nats_peers opens a port that nobody "
            "would check: set cluster.nats_secret_file, the same secret at each broker"
        )
    grpc_host = config.grpc.host or config.host
    open_host = config.host if not _is_loopback(config.host) else grpc_host
    if not config.tls.is_on and not _is_loopback(open_host):
        key = "host" if open_host == config.host else "grpc.host"
        raise InvalidConfigError(
            f"{key} is {open_host!r} and there is no TLS: tokens would travel in clear text; set "
            "tls.certificate and tls.key"
        )
    _check_peer_tls(config)


def _check_peer_tls(config: BrokerConfig) -> None:
    """Reject a peer link without TLS that others can reach: it checks only the cluster's name."""
    cluster, host = config.cluster, config.peer_host
    if cluster.is_on and not cluster.tls_certificate and not _is_loopback(host):
        raise InvalidConfigError(
            "auth.enabled checks who reads and publishes, and whoever reaches cluster.peer_port on "
            f"{host!r} could pass for a broker and do both: set cluster.tls_certificate, tls_key "
            "and tls_authority"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to an address that others reach


def _check_cluster(cluster: ClusterConfig) -> None:
    """Reject cluster settings that are missing or contradict each other."""
    if not cluster.is_on:
        if cluster.peers or cluster.name or cluster.broker_id < 0:
            raise InvalidConfigError(
                "cluster.broker_id is missing; a broker of a cluster has a number from 1"
            )
        return
    if not cluster.name or len(cluster.name) > CLUSTER_NAME_MAX:
        raise InvalidConfigError(
            f"cluster.name has 1 to {CLUSTER_NAME_MAX} characters; give every broker the same"
        )
    for key, addresses in (
        ("cluster.peers", cluster.peer_addresses),
        ("cluster.nats_peers", cluster.nats_addresses or {cluster.broker_id: ("", 0)}),
    ):
        if cluster.broker_id not in addresses:
            raise InvalidConfigError(
                f"{key} does not name broker {cluster.broker_id}; name every broker of the "
                "cluster, this one too, as ID=HOST:PORT"
            )
    files = (cluster.tls_certificate, cluster.tls_key, cluster.tls_authority)
    if any(files) and not all(files):
        names = ("tls_certificate", "tls_key", "tls_authority")
        missing = next(name for name, file in zip(names, files, strict=True) if not file)
        raise InvalidConfigError(
            "TLS needs cluster.tls_certificate, tls_key and tls_authority; set "
            f"cluster.{missing}, too"
        )
