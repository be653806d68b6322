"""The permissions that each Flight action needs, in one table for auditors and for the code.

Rules: an action that is not in the table cannot be run. Permissions are checked for every name in
the decoded body, never for a prefix or only the first name. Actions that list objects show each
caller only what it may see.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from strandline.api import access, admin, cluster, encryption, groups, local, quotas, transactions
from strandline.api.tickets import ReadRequest
from strandline.api.wire import decode
from strandline.broker.access import Caller
from strandline.broker.internal import is_internal
from strandline.config import StreamConfig, decode_config
from strandline.security.acl import CLUSTER, Operation, Resource
from strandline.servers.required_permissions import (
    KNOWN_STREAM,
    Need,
    group,
    needs_of_stream,
    sees_stream,
    stream,
)

Needs = Callable[[bytes], Iterable[Need]]


def _create_stream(body: bytes) -> Iterator[Need]:
    values = decode(body, dict[str, Any], what="stream configuration")
    return needs_of_stream(decode_config(values, StreamConfig))


def _on_stream(kind: type[Any], field: str, *operations: Operation) -> Needs:
    def needs(body: bytes) -> Iterator[Need]:
        yield stream(getattr(decode(body, kind, what="request"), field), *operations)

    return needs


def _stream_info(body: bytes) -> Iterator[Need]:
    """Yield nothing for the broker's own streams: every client must find their leaders."""
    name = decode(body, admin.StreamInfoRequest, what=admin.STREAM_INFO).name
    if not is_internal(name):
        yield stream(name, *KNOWN_STREAM)


def _on_group(kind: type[Any], field: str = "group", operation: Operation = "group") -> Needs:
    def needs(body: bytes) -> Iterator[Need]:
        yield group(getattr(decode(body, kind, what="request"), field), operation)

    return needs


def _on_cluster(operation: Operation) -> Needs:
    return lambda _: (Need(CLUSTER, (operation,)),)


def _nothing(_: bytes) -> Iterable[Need]:
    """Return no needs: any principal that a rule names may run the action."""
    return ()


def _join_group(body: bytes) -> Iterator[Need]:
    request = decode(body, groups.JoinGroupRequest, what=groups.JOIN_GROUP)
    yield group(request.group)
    for name in request.streams:
        yield stream(name, "read")


def _begin(body: bytes) -> Iterator[Need]:
    request = decode(body, transactions.BeginTransaction, what=transactions.BEGIN_TRANSACTION)
    yield group(request.id)
    if request.batch is not None:
        yield group(request.batch.transaction_id)


def _add_places(body: bytes) -> Iterator[Need]:
    request = decode(body, transactions.AddToTransaction, what=transactions.ADD_TO_TRANSACTION)
    yield group(request.id)
    for place in request.partitions:
        yield stream(place.stream, "publish")


NEEDS: Final[Mapping[str, Needs]] = {
    admin.CREATE_STREAM: _create_stream,
    admin.DELETE_STREAM: _on_stream(admin.StreamName, "name", "admin"),
    admin.DELETE_RECORDS: _on_stream(admin.DeleteRecords, "name", "admin"),
    admin.STREAM_INFO: _stream_info,
    admin.LIST_STREAMS: _nothing,
    admin.OFFSETS: _on_stream(admin.OffsetsRequest, "name", "read"),
    admin.WAIT_BEYOND: _on_stream(admin.WaitRequest, "name", "read"),
    admin.SERVER_INFO: _nothing,
    admin.NEW_PRODUCER: _nothing,
    local.LOCAL_FILES: _on_stream(ReadRequest, "stream", "read"),
    cluster.CLUSTER_STATUS: _on_cluster("read"),
    cluster.ADMIT_BROKER: _on_cluster("admin"),
    cluster.DRAIN_BROKER: _on_cluster("admin"),
    cluster.REMOVE_BROKER: _on_cluster("admin"),
    cluster.REPLACE_DISK: _on_cluster("admin"),
    cluster.REASSIGN: _on_cluster("admin"),
    cluster.REBALANCE: _on_cluster("admin"),
    cluster.ELECT_LEADER: _on_cluster("admin"),
    cluster.ADD_PARTITIONS: _on_cluster("admin"),  # the stream may then record more subjects
    encryption.LIST_KEYS: _on_cluster("read"),
    encryption.ROTATE_KEYS: _on_cluster("admin"),
    transactions.BEGIN_TRANSACTION: _begin,
    transactions.ADD_TO_TRANSACTION: _add_places,
    transactions.PREPARE_TRANSACTION: _on_group(transactions.PrepareTransaction, "id"),
    transactions.END_TRANSACTION: _on_group(transactions.EndTransaction, "id"),
    transactions.END_PREPARED: _on_group(transactions.EndPrepared, "id"),
    transactions.COMMIT_STAGED: _on_group(transactions.CommitStaged, "transaction_id"),
    transactions.LAST_PUBLISHED: _on_group(transactions.TransactionName, "transaction_id"),
    transactions.LIST_TRANSACTIONS: _nothing,
    groups.JOIN_GROUP: _join_group,
    groups.GROUP_HEARTBEAT: _on_group(groups.GroupHeartbeat),
    groups.LEAVE_GROUP: _on_group(groups.LeaveGroupRequest),
    groups.COMMIT_OFFSETS: _on_group(groups.CommitOffsets),
    groups.GROUP_INFO: _on_group(groups.GroupRef),
    groups.LIST_GROUPS: _nothing,
    groups.DELETE_GROUP: _on_group(groups.GroupRef, operation="admin"),
    access.LIST_RULES: _on_cluster("admin"),
    access.GRANT: _on_cluster("admin"),
    access.REVOKE: _on_cluster("admin"),
    access.LIST_TOKENS: _on_cluster("admin"),
    access.ADD_TOKEN: _on_cluster("admin"),
    access.REVOKE_TOKEN: _on_cluster("admin"),
    quotas.LIST_QUOTAS: _on_cluster("admin"),
    quotas.SET_QUOTA: _on_cluster("admin"),
    quotas.REMOVE_QUOTA: _on_cluster("admin"),
}
"""Action → what its body needs; beyond that, every asker must be named by some rule."""


def _producer_of(kind: type[Any], field: str = "producer") -> Callable[[bytes], int | None]:
    def producer_id(body: bytes) -> int | None:
        ref = getattr(decode(body, kind, what="request"), field)
        return None if ref is None else ref.producer_id

    return producer_id


PRODUCERS: Final[Mapping[str, Callable[[bytes], int | None]]] = {
    transactions.BEGIN_TRANSACTION: _producer_of(transactions.BeginTransaction, "after"),
    transactions.ADD_TO_TRANSACTION: _producer_of(transactions.AddToTransaction),
    transactions.PREPARE_TRANSACTION: _producer_of(transactions.PrepareTransaction),
    transactions.END_TRANSACTION: _producer_of(transactions.EndTransaction),
    groups.COMMIT_OFFSETS: _producer_of(groups.CommitOffsets, "transaction"),
}
"""Action → the producer id that its body speaks for, which must have been given to the asker."""


def _sees_group(caller: Caller, name: str) -> bool:
    return caller.may(Resource("group", name), "group", "admin")


VISIBLE: Final[Mapping[str, Callable[[Caller, Any], bool]]] = {
    admin.LIST_STREAMS: lambda caller, info: sees_stream(caller, info.name),
    transactions.LIST_TRANSACTIONS: lambda caller, info: _sees_group(caller, info.id),
    groups.LIST_GROUPS: lambda caller, info: _sees_group(caller, info.group),
}
"""Actions that list: which of their answers an asker sees."""


def check_action(caller: Caller, name: str, body: bytes) -> None:
    """Raise unless the caller may run an action with this body.

    Raises:
        NotAllowedError, UnauthenticatedError: see ``Caller.check`` and ``check_producer``.
        InvalidRequestError: the body is invalid.
    """
    if not caller.is_checked:
        return
    caller.check_known()
    for need in NEEDS[name](body):
        caller.check(need.resource, *need.operations)
    producer_id = PRODUCERS[name](body) if name in PRODUCERS else None
    if producer_id is not None:
        caller.check_producer(producer_id)
