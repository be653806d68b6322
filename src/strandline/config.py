"""Typed settings of a broker (at start) and of a stream (at creation).

Rules: every field has a default that suits one machine, units come last in names, and unknown keys
are rejected with a suggestion. ``strandline.process`` reads files and the environment; this module
only decodes and checks values. ``docs/configuration.md`` documents every key (tested).
"""

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import msgspec.structs

from strandline.errors import InvalidConfigError

Acks = Literal["memory", "disk", "replicated"]
"""The ack levels, weakest first."""
PartitionBy = Literal["suffix", "subject", "key", "message_id"]
Compression = Literal["none", "zstd", "lz4"]

PARTITIONS_MAX = 10_000
NAME_BYTES_MAX = 200


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a stream, fixed at creation."""

    name: str
    subject: str
    """NATS subject that the stream stores; may contain ``*`` and ``>``."""
    partitions: int = 1
    partition_by: PartitionBy | None = None
    """How a record finds its partition: ``suffix`` (subject ``.N``, as Liftbridge does), or the
    CRC-32 of its ``subject`` or ``key`` modulo the partitions. Default: ``subject`` if the subject
    has a wildcard, else ``suffix``."""
    replicas: int = 1
    """Brokers that keep a copy of each partition; more than one needs a cluster."""
    min_isr: int = 1
    """In-sync replicas below which appends are rejected and nothing more is committed."""
    queue_group: str = ""
    """Streams of one queue group share the messages of a subject: each is stored by one of them."""
    acks: Acks | None = None
    """The ack level of records, unless a publish asks for a weaker one. Default: ``replicated``
    with several replicas, else ``disk``."""
    pub_ack: bool = True
    """Answer a publish that has a reply subject with JetStream's PubAck."""
    compression: Compression = "none"
    encryption: bool = False
    """Encrypt records wherever they are stored; needs a master key, see docs/encryption.md."""
    retention_age_ms: int = 0
    """Delete records older than this; 0 keeps them."""
    retention_bytes: int = 0
    """Per partition; 0 is unlimited."""
    retention_records: int = 0
    """Per partition; 0 is unlimited."""
    max_records_per_subject: int = 0
    """Keep only this many records of each subject, the newest; 0 is unlimited. Readers no longer
    see the others at once; compaction frees their space later."""
    compact: bool = False
    """Keep only the newest record of each key."""
    tombstone_delay_ms: int = 24 * 3600 * 1000
    """How long a null value stays visible before compaction removes it with its key."""
    segment_bytes: int = 256 << 20
    segment_age_ms: int = 7 * 24 * 3600 * 1000
    dedup_window_ms: int = 120_000
    """How long a ``Nats-Msg-Id`` is remembered; 0 turns deduplication off."""
    auto_pause_ms: int = 0
    """Pause a partition without a new record for this long; 0: never."""
    auto_pause_if_read: bool = True
    """Whether to pause a partition even while Liftbridge clients subscribe to it."""
    optimistic_concurrency: bool = False
    """Reject a publish of a Liftbridge client unless the offset that it expects is the next one."""
    schema_validation: bool = False
    """Reject a record whose value does not fit the stream's schema, see docs/schemas.md."""
    description: str = ""
    """Text for people, at most 4,096 bytes."""

    @property
    def has_gaps(self) -> bool:
        """Return whether compaction removes records between others."""
        return self.compact or self.max_records_per_subject > 0

    @property
    def acks_in_force(self) -> Acks:
        """Return the ack level, with the default resolved."""
        if self.acks is not None:
            return self.acks
        return "replicated" if self.replicas > 1 else "disk"

    def promises(self, acks: Acks) -> bool:
        """Return whether a publish may request this ack level: at most the stream's own."""
        levels = get_args(Acks)
        return levels.index(acks) <= levels.index(self.acks_in_force)

    @property
    def partition_rule(self) -> PartitionBy:
        """Return the partition rule in force, with the default resolved."""
        if self.partition_by is not None:
            return self.partition_by
        tokens = self.subject.split(".")
        return "subject" if "*" in tokens or ">" in tokens else "suffix"


class GrpcStreamsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of streams that Liftbridge clients create."""

    retention_bytes: int = 0
    retention_records: int = 0
    retention_age_ms: int = 0
    segment_bytes: int = 256 << 20
    segment_age_ms: int = 7 * 24 * 3600 * 1000
    compact: bool = False
    auto_pause_ms: int = 0
    auto_pause_if_read: bool = True
    min_isr: int = 1
    optimistic_concurrency: bool = False
    encryption: bool = False


class GrpcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The listeners for clients of Liftbridge and of Beam's log; see docs/liftbridge.md."""

    port: int = -1
    """Port of the Liftbridge API, by custom 9292; 0 picks a free one, -1 turns it off."""
    host: str = ""
    """Address that the gRPC listeners bind; empty: ``host``."""
    advertised_host: str = ""
    """Host that Liftbridge clients are told to connect to; empty: ``cluster.advertised_host``, or
    else the bound address."""
    advertised_port: int = 0
    """Port that Liftbridge clients are told to connect to; 0: ``grpc.port``."""
    namespace: str = "liftbridge-default"
    """First token of the subjects of the API's internal streams."""
    cursor_partitions: int = 1
    """Partitions of the stream ``__cursors``; 0: no cursors."""
    activity: bool = False
    """Record events of streams and groups in the stream ``__activity``."""
    consumer_timeout_ms: int = 15_000
    """A member of a consumer group without a heartbeat for longer is removed."""
    coordinator_timeout_ms: int = 15_000
    """Members report a coordinator that is silent for longer."""
    streams: GrpcStreamsConfig = GrpcStreamsConfig()
    beam_port: int = -1
    """Port of Beam's log API; 0 picks a free one, -1 turns it off."""
    beam_stream: str = "beam"
    """The stream that Beam's log API serves; created if it does not exist."""
    beam_record_bytes: int = 8 << 20
    """Largest proposal at Beam's log API, if more than ``limits.record_bytes``; at most
    ``limits.batch_bytes``."""


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The journal shared by all partitions."""

    file_bytes: int = 64 << 20
    """Size of one preallocated journal file. After a checkpoint, full files are used again."""
    checkpoint_interval_ms: int = 30_000


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits, checked before memory is allocated."""

    record_bytes: int = 1 << 20
    """Largest record: key, value and headers together."""
    batch_bytes: int = 16 << 20
    """Largest batch accepted, compressed or not."""
    commit_records: int = 16_384
    """The most records in one group commit."""
    commit_bytes: int = 8 << 20
    """The most bytes of values in one group commit."""
    pending_bytes: int = 256 << 20
    """The most bytes accepted but not stored yet; more is rejected until the disk catches up."""


class NatsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the NATS listeners and of the connection to nats-server."""

    servers: list[str] = []
    """URLs of your own NATS servers; empty starts a nats-server as a child process."""
    leafnodes: list[str] = []
    """Addresses of the leaf node listeners of ``servers``; with them clients there can use the
    JetStream API, as the domain ``domain``."""
    domain: str = "strandline"
    """JetStream domain of the API at ``servers``, which may have a JetStream of their own."""
    port: int = 4222
    """Port of the child nats-server; 0 picks a free one."""
    ingest_port: int = 4223
    """Port of the broker's own listener for publishers, which speaks the NATS client protocol and
    saves the hop through nats-server; 0 picks a free one, -1 turns it off."""
    authority: str = ""
    """PEM file of the authority that signs the certificates of ``servers`` with ``tls://``; empty:
    the authorities that the system trusts."""


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS settings of the listeners for clients; brokers among themselves use ``cluster.tls_*``."""

    certificate: str = ""
    """PEM file of this broker's certificate and its chain; empty: no TLS."""
    key: str = ""
    """PEM file of the certificate's key."""
    authority: str = ""
    """PEM file of the authority that signs the certificates of clients; empty: they need none."""

    @property
    def is_on(self) -> bool:
        """Whether the listeners use TLS."""
        return bool(self.certificate)


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Access control settings; see docs/security.md."""

    enabled: bool = False
    """Reject callers without credentials, and operations that no rule allows."""
    admin_token: str = ""
    """Token of the first administrator; better in ``admin_token_file``, or in the
    environment."""
    admin_token_file: str = ""
    """File that contains the token of the first administrator."""
    admins: list[str] = []
    """Administrators: names in certificates, or principals of tokens."""


class EncryptionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of encryption at rest, for streams that request it; see docs/encryption.md."""

    key_file: str = ""
    """File of the master keys, the current one first; empty: those in the environment, or none."""


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a broker in a cluster; see docs/cluster.md."""

    broker_id: int = 0
    """Permanent id of this broker, from 1; 0: the broker is not part of a cluster."""
    name: str = ""
    """Name of the cluster: brokers of another one are rejected."""
    peer_port: int = 9295
    """Port for connections of the other brokers; 0 picks a free one."""
    peer_host: str = ""
    """Address that the ports for other brokers bind to: ``peer_port``, and the port of the child
    nats-server in ``nats_peers``. Empty: ``host``."""
    peers: list[str] = []
    """Every broker of the cluster, including this one, as ``ID=HOST:PORT``."""
    advertised_host: str = ""
    """Host that clients connect to; empty: the host of this broker in ``peers``."""
    nats_peers: list[str] = []
    """Address for routes of each broker's nats-server, as ``ID=HOST:PORT``; empty: no routes."""
    nats_secret_file: str = ""
    """File with a secret, the same on each broker, with which the nats-servers authenticate."""
    move_bytes_per_s: int = 0
    """How fast this broker copies partitions to replicas that a reassignment adds; 0: no limit."""
    join: bool = False
    """Whether an empty data directory joins a running cluster, instead of founding one."""
    rack: str = ""
    """Rack of this broker; replicas are spread over racks if there are enough."""
    trace: str = ""
    """File for a trace of elections and writes; empty: none. See docs/traces.md."""
    tls_certificate: str = ""
    """PEM file of this broker's certificate; empty: no TLS between brokers."""
    tls_key: str = ""
    """PEM file of the certificate's key."""
    tls_authority: str = ""
    """PEM file of the authority that signs the certificates of the cluster's brokers."""

    @property
    def is_on(self) -> bool:
        """Whether the broker belongs to a cluster."""
        return self.broker_id > 0

    @property
    def peer_addresses(self) -> dict[int, tuple[str, int]]:
        """Return the host and port of every broker.

        Raises:
            InvalidConfigError: an entry is not ``ID=HOST:PORT``.
        """
        return parse_peers(self.peers, "cluster.peers")

    @property
    def client_host(self) -> str:
        """The host by which clients reach this broker.

        Raises:
            InvalidConfigError: an entry of ``peers`` is not ``ID=HOST:PORT``.
        """
        return self.advertised_host or self.peer_addresses[self.broker_id][0]

    @property
    def nats_addresses(self) -> dict[int, tuple[str, int]]:
        """Return the host and port of every broker's nats-server for the other brokers.

        Raises:
            InvalidConfigError: an entry is not ``ID=HOST:PORT``.
        """
        return parse_peers(self.nats_peers, "cluster.nats_peers")


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a broker, read at start."""

    data_dir: str = "strandline-data"
    host: str = "127.0.0.1"
    """Address every listener binds to."""
    flight_port: int = 9293
    """Port of Arrow Flight; 0 picks a free one."""
    local_reads: bool = True
    """Let readers on this machine read the broker's files directly, if they have the permission."""
    http_port: int = 9294
    """Port of the console, metrics and health; 0 picks a free one, -1 turns it off."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    """Text for people, or one JSON object per line for programs."""
    nats: NatsConfig = NatsConfig()
    grpc: GrpcConfig = GrpcConfig()
    journal: JournalConfig = JournalConfig()
    limits: LimitsConfig = LimitsConfig()
    tls: TlsConfig = TlsConfig()
    encryption: EncryptionConfig = EncryptionConfig()
    auth: AuthConfig = AuthConfig()
    cluster: ClusterConfig = ClusterConfig()
    cleaner_interval_ms: int = 10_000
    """How often retention and compaction look for work."""
    scrub_interval_ms: int = 24 * 3600 * 1000
    """How often all stored records are read again to find corruption."""
    scrub_bytes_per_s: int = 16 << 20
    """Bytes that this check reads per second; 0 turns it off."""
    allow_corrupt_coordinator_log: bool = False
    """Let the coordinators of groups and transactions start without their corrupt log entries."""

    @property
    def peer_host(self) -> str:
        """Return the address that the ports for other brokers bind to."""
        return self.cluster.peer_host or self.host


def parse_peers(entries: list[str], key: str) -> dict[int, tuple[str, int]]:
    """Parse a list of ``ID=HOST:PORT`` entries into brokers and their addresses.

    Raises:
        InvalidConfigError: an entry is malformed, or an id is given twice.
    """
    found: dict[int, tuple[str, int]] = {}
    for entry in entries:
        number, _, address = entry.partition("=")
        host, _, port = address.rpartition(":")
        if not (number.isdigit() and port.isdigit() and host and 0 < int(number) < 1 << 31):
            raise InvalidConfigError(
                f"{key}: {entry!r} is not ID=HOST:PORT; write e.g. 4=10.0.0.4:9295"
            )
        if int(number) in found:
            raise InvalidConfigError(f"{key}: {entry!r} repeats an id; give each broker its own")
        if not 0 < int(port) < 1 << 16:
            raise InvalidConfigError(f"{key}: {entry!r} has the port {port}; it is 1 to 65535")
        found[int(number)] = (host.strip("[]"), int(port))
    return found


def bracketed(host: str) -> str:
    """Return a host as written before a port: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host


StructT = TypeVar("StructT", bound=msgspec.Struct)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_EXPECTED = re.compile(r"Expected `([^`]+)`(.*?)(?:, got `[^`]+`)?")
_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "keys and values",
    "str": "text",
}
_SECRET = ("token", "secret", "password")
_SHOWN_CHARACTERS_MAX = 100


def decode_config(values: Mapping[str, Any], kind: type[StructT]) -> StructT:
    """Build a settings struct from plain values.

    Args:
        values: a nested mapping, as parsed from YAML or JSON.
        kind: ``BrokerConfig`` or ``StreamConfig``.

    Raises:
        InvalidConfigError: a key is unknown, or a value is not valid; the message names the key
            and, for an unknown one, the nearest valid key.
    """
    check_known_keys(values, kind, path="")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfigError(misfit_text(error, values, kind)) from error


def misfit_text(error: Exception, values: Any, kind: Any = None, *, name: str = "it") -> str:
    """Return why msgspec refuses values: the key, its value, and what it takes.

    Args:
        error: of msgspec.
        values: what was refused, as plain values.
        kind: the struct they were to become, whose choices are listed.
        name: stands for all of the values.
    """
    what, _, path = str(error).partition(" - at `$")
    if " - at `" in what:
        return what  # of a key of a mapping, which has no place among the values
    steps = [name or int(place) for name, place in _STEP.findall(path.removesuffix("`"))]
    try:
        value = functools.reduce(lambda part, step: part[step], steps, values)
    except (LookupError, TypeError):
        return str(error)  # below a key of any name, which the path leaves out
    key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    key = key.removeprefix(".")
    if (missing := _MISSING.fullmatch(what)) is not None:
        return f"{f'{key}.' if key else ''}{missing[1]} is missing; it is required"
    if (unknown := _UNKNOWN.fullmatch(what)) is not None:
        return f"{f'{key}.' if key else ''}{unknown[1]} is not known; leave it out"
    key, shown = key or name, repr(value)
    if any(word in key for word in _SECRET):
        shown = "a value that is not shown"
    elif len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = f"{shown[:_SHOWN_CHARACTERS_MAX]}…"
    choices, is_all = _choices(kind, steps)
    if choices and (is_all or what.startswith("Invalid enum")):
        what = f"{'it must be' if is_all else 'as text it is'} one of {', '.join(choices)}"
    elif (expected := _EXPECTED.fullmatch(what)) is not None:
        words = [_WORDS.get(each, each) for each in expected[1].split(" | ")]
        what = f"it must be {' or '.join(words)}{expected[2]}"
    return f"{key} is {shown}; {what}"


def _choices(kind: Any, steps: Sequence[str | int]) -> tuple[list[str], bool]:
    """Return the texts that a field of a struct may be, and whether it can be nothing else."""
    for step in steps:
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return [], False
        kind = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}.get(str(step))
    parts = [kind] if get_origin(kind) is Literal else [*get_args(kind)]
    choices = [each for each in parts if get_origin(each) is Literal]
    is_all = all(each in choices or each is NoneType for each in parts)
    return [str(text) for each in choices for text in get_args(each)], is_all


def check_known_keys(values: Mapping[str, Any], kind: type[msgspec.Struct], *, path: str) -> None:
    """Check the keys of ``values`` and of its nested mappings against the fields of ``kind``.

    Raises:
        InvalidConfigError: on the first unknown key, with the nearest valid one.
    """
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"; did you mean '{path}{near[0]}'?" if near else f"; valid: {', '.join(fields)}"
            raise InvalidConfigError(f"unknown configuration key '{path}{key}'{hint}")
        nested = fields[key]
        is_section = isinstance(nested, type) and issubclass(nested, msgspec.Struct)
        if is_section and isinstance(value, Mapping):
            check_known_keys(value, nested, path=f"{path}{key}.")
