"""The types of what commands print with ``--output json``, one document a line.

Rules: only types. ``strandline schema`` and the reference page turn them into JSON Schemas, and the
commands' tests compare the output with them. Commands that print a struct of the API are listed
with that struct.
"""

from typing import Any, Final, Literal, NotRequired, TypedDict

import msgspec

from strandline.api.access import TokenInfo
from strandline.api.admin import StreamInfo
from strandline.api.cluster import BrokerInfo, CopiesInfo
from strandline.api.encryption import KeyInfo
from strandline.api.groups import GroupInfo, GroupSummary
from strandline.api.quotas import QuotaInfo
from strandline.api.schemas import SchemaInfo
from strandline.cli.findings import CheckFinding
from strandline.cli.top import Measurement
from strandline.spark.pipelines.status import LoadStatus


class ErrorDocument(TypedDict):
    """An error, printed on standard error."""

    error: str
    """The code, as listed in docs/errors.md."""
    message: str
    retriable: bool


class ReadyDocument(TypedDict):
    """The addresses of a broker that is ready; a null port is off."""

    event: Literal["ready"]
    data_dir: str
    host: str
    nats_port: int | None
    ingest_port: int | None
    flight_port: int
    http_port: int | None
    grpc_port: int | None
    beam_port: int | None
    pid: int
    broker_id: NotRequired[int]
    peer_port: NotRequired[int]


class ExitedDocument(TypedDict):
    """A broker of ``strandline dev`` that has ended."""

    event: Literal["exited"]
    broker: int
    code: int
    """The exit code; if negative, the signal that killed the broker."""
    config: str


class DoneDocument(TypedDict):
    """The end of a command that changes a cluster."""

    event: Literal["done"]
    message: str


class ProgressDocument(TypedDict):
    """The progress of moving replicas, printed whenever it changes."""

    event: Literal["progress"]
    partitions_left: int
    moving: int
    records_to_copy: int


class AdmittedDocument(TypedDict):
    """A broker that was admitted to the cluster and may join."""

    admitted: int
    peer_address: str


class InitBroker(TypedDict):
    """A broker of a new cluster, and the location of its files."""

    broker_id: int
    host: str
    peer_host: str
    rack: str
    flight: str
    ports: dict[str, int]
    directory: str
    copy_to: str
    command: str


class InitDocument(TypedDict):
    """The brokers of a new cluster."""

    cluster_id: str
    brokers: list[InitBroker]
    status_command: str


class StatusDocument(TypedDict):
    """A cluster's status; each partition also has ``lag_records`` by broker, null if unknown."""

    cluster: str
    broker: int
    controller: int | None
    brokers: list[BrokerInfo]
    partitions: list[CopiesInfo]
    removed: list[int]
    age_ms: int


class RecoveredDocument(TypedDict):
    """A broker that was made the only voter."""

    event: Literal["done"]
    broker: int
    voters: list[int]
    in_doubt: list[str]
    without_copy: list[str]


class DiscardedDocument(TypedDict):
    """A broker whose copy of the metadata was deleted."""

    event: Literal["done"]
    broker: int


class DeletedDocument(TypedDict):
    """The name of what was deleted."""

    deleted: str


class DeletedRecordsDocument(TypedDict):
    """A partition whose oldest records were deleted."""

    stream: str
    partition: int
    log_start_offset: int


class GroupProgress(TypedDict):
    """A group's progress in a partition for which it has a committed offset or a member."""

    stream: str
    partition: int
    offset: int | None
    """The committed offset; null if there is none."""
    lag: int | None
    """How many offsets the group has still to read; null if unknown."""
    member: str
    is_beyond: bool
    """Whether the offset is beyond the end of the log, because the stream was recreated or its log
    was truncated."""


class GroupDocument(GroupInfo, frozen=True, kw_only=True):
    """A group with its progress."""

    progress: tuple[GroupProgress, ...]


class ResetDocument(TypedDict):
    """The committed offsets that a reset has set, by partition."""

    group: str
    stream: str
    offsets: dict[str, int]


class MasterKeyDocument(TypedDict):
    """A new master key."""

    key: str


class RuleDocument(TypedDict):
    """An access rule."""

    principal: str
    operation: str
    kind: str
    pattern: str


class _AccessChange(TypedDict):
    access_checked: bool
    """Whether the broker checks access; if not, rules, tokens and quotas have no effect."""


class GrantedDocument(_AccessChange):
    """A rule that was added: principal, operation, kind, pattern."""

    granted: list[str]


class RevokedRuleDocument(_AccessChange):
    """A rule that was removed."""

    revoked: list[str]


class TokenDocument(_AccessChange):
    """A new token."""

    principal: str
    token: str


class RevokedTokenDocument(_AccessChange):
    """The id of a token that was revoked."""

    revoked: str


class QuotaDocument(_AccessChange):
    """The limits of a principal; 0 is unlimited."""

    principal: str
    publish_bytes_per_s: int
    read_bytes_per_s: int
    requests_per_s: int
    connections: int


class RemovedDocument(_AccessChange):
    """The principal whose quota was removed."""

    removed: str


class PublishedDocument(TypedDict):
    """The partition and offset of a published record."""

    stream: str
    partition: int
    offset: int
    duplicate: bool
    """Whether a record with the same message id was stored before."""


class PublishedLinesDocument(TypedDict):
    """The number of records stored from a file or standard input."""

    stream: str
    records: int


class RecordDocument(TypedDict, total=False):
    """A record with the requested columns; bytes that are not UTF-8 are in ``<name>_base64``."""

    partition: int
    offset: int
    timestamp: str
    """ISO 8601 in UTC with nine decimals of the second."""
    subject: str | None
    key: str | None
    key_base64: str
    value: Any
    """Text or null; with ``--values`` the decoded value."""
    value_base64: str
    value_error: str
    """Why the value could not be decoded."""
    headers: list[tuple[str, str]]
    headers_base64: list[tuple[str, str]]


class CopyingDocument(TypedDict):
    """The progress of a backup, once a second."""

    event: Literal["progress"]
    partitions_left: int
    copied_bytes: int


class _ManifestFields(TypedDict):
    backup: str
    number: int
    cluster: str
    """Empty for a broker alone."""
    started_ns: int
    """Everything acknowledged before this time is in the backup."""
    finished_ns: int
    streams: int
    partitions: int
    files: int
    size_bytes: int


class BackupDocument(_ManifestFields):
    """A completed backup."""

    event: Literal["done"]
    copied_bytes: int
    """Bytes that the previous backup in the directory did not have."""
    copied_files: int
    uncommitted: list[str]
    """Partitions whose newest records were not committed in time and are not in the backup."""
    left_out: list[str]
    """Streams that were deleted, and perhaps recreated, during the backup and are not in it."""
    damaged: list[str]
    """Files of the previous backup that were missing or damaged and were copied again."""


class RestoredDocument(_ManifestFields):
    """A data directory that was created from a backup."""

    event: Literal["done"]
    data_dir: str
    restored_partitions: int
    restored_bytes: int
    changed_replicas: list[str]
    """Streams whose number of replicas differs from the backup."""


class VerifiedDocument(_ManifestFields):
    """A backup whose files are intact."""

    event: Literal["verified"]


class FileFinding(TypedDict):
    """A finding at a position in a file."""

    position: int
    severity: str
    message: str


class FileDocument(TypedDict):
    """A file of a data directory."""

    file: str
    kind: str
    partition: str | None
    size_bytes: int
    corrupt: bool
    facts: dict[str, Any]
    findings: list[FileFinding]


class PieceDocument(TypedDict):
    """A piece of a dumped file; its other fields depend on the kind of file."""

    position: int


class BenchDocument(TypedDict, total=False):
    """A measurement; its fields depend on the benchmark."""

    bench: str
    records: int
    value_bytes: int
    arrow_bytes: int
    partitions: int
    acks: str
    seconds: float
    records_per_s: int
    mib_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class MicroBatchDocument(TypedDict):
    """A micro-batch of a pipeline."""

    query: str
    batch: int
    records: int
    ms: int
    lag: dict[str, int | None]
    oldest_unread_ms: NotRequired[dict[str, int | None]]


class VersionDocument(TypedDict):
    """The version, and whether the compiled functions are used."""

    version: str
    compiled: bool


_MOVES: Final = (ProgressDocument, DoneDocument)
_OPEN: Final = (dict[str, Any],)
"""A document whose fields depend on the arguments."""

DOCUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "serve": (ReadyDocument,),
    "dev": (ReadyDocument, ExitedDocument),
    "doctor": (CheckFinding,),
    "liftbridge": (ReadyDocument,),
    "cluster init": (InitDocument,),
    "cluster status": (StatusDocument,),
    "cluster add": (AdmittedDocument,),
    "cluster drain": _MOVES,
    "cluster undrain": _MOVES,
    "cluster remove": _MOVES,
    "cluster replace-disk": _MOVES,
    "cluster reassign": _MOVES,
    "cluster rebalance": _MOVES,
    "cluster elect": _MOVES,
    "cluster force-recover": (RecoveredDocument,),
    "cluster discard-metadata": (DiscardedDocument,),
    "stream create": (StreamInfo,),
    "stream list": (StreamInfo,),
    "stream info": (StreamInfo,),
    "stream delete": (DeletedDocument,),
    "stream update": (StreamInfo,),
    "stream add-partitions": (StreamInfo,),
    "stream delete-records": (DeletedRecordsDocument,),
    "stream schema set": (SchemaInfo,),
    "stream schema import": (SchemaInfo,),
    "stream schema list": (SchemaInfo,),
    "stream schema show": (SchemaInfo,),
    "stream schema delete": (DeletedDocument,),
    "group list": (GroupSummary,),
    "group info": (GroupDocument,),
    "group reset": (ResetDocument,),
    "group delete": (DeletedDocument,),
    "encryption new-key": (MasterKeyDocument,),
    "encryption list": (KeyInfo,),
    "encryption rotate": (KeyInfo,),
    "acl list": (RuleDocument,),
    "acl grant": (GrantedDocument,),
    "acl revoke": (RevokedRuleDocument,),
    "token create": (TokenDocument,),
    "token list": (TokenInfo,),
    "token revoke": (RevokedTokenDocument,),
    "quota set": (QuotaDocument,),
    "quota list": (QuotaInfo,),
    "quota remove": (RemovedDocument,),
    "publish": (PublishedDocument, PublishedLinesDocument),
    "read": (RecordDocument,),
    "top": (Measurement,),
    "backup": (CopyingDocument, BackupDocument),
    "restore": (RestoredDocument, VerifiedDocument),
    "inspect": (FileDocument, PieceDocument),
    "bench append": (BenchDocument,),
    "bench read": (BenchDocument,),
    "bench latency": (BenchDocument,),
    "pipeline run": (MicroBatchDocument,),
    "pipeline status": (LoadStatus,),
    "demo": _OPEN,
    "schema": _OPEN,
    "version": (VersionDocument,),
}
"""Command → the documents, each line of its standard output being one of them."""


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema for a line that a command prints with ``--output json``."""
    types = DOCUMENTS[command]
    roots, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    root = roots[0] if len(roots) == 1 else {"anyOf": list(roots)}
    local = {"$schema": "https://json-schema.org/draft/2020-12/schema", **root}
    return {**local, "$defs": components} if components else local
