"""A valid body for every admin command, about the stream, subject and group ``mine``.

Rule: a new command gets its body here, or the tests of the commands fail.
"""

from typing import Any, Final

from strandline.api import (
    access,
    admin,
    backup,
    cluster,
    encryption,
    groups,
    local,
    monitoring,
    quotas,
    schemas,
    transactions,
)
from strandline.api.command import AdminCommand
from strandline.api.wire import encode

MINE: Final = "mine"
OURS: Final = "ours"
"""A second name, for requests with several names."""
_PRODUCER: Final = [1, 0]
_MEMBER: Final = {"group": MINE, "member": "m"}
_RULES: Final = {"rules": [["app", "read", "stream", MINE]]}

_REQUESTS: Final[dict[AdminCommand[Any, Any], dict[str, Any] | None]] = {
    admin.CREATE_STREAM: {"name": MINE, "subject": "mine.>", "queue_group": MINE},
    admin.DELETE_STREAM: {"name": MINE},
    admin.UPDATE_STREAM: {"name": MINE, "schema_validation": False},
    admin.DELETE_RECORDS: {"name": MINE, "offset": 1},
    admin.STREAM_INFO: {"name": MINE},
    admin.LIST_STREAMS: None,
    admin.OFFSETS: {"name": MINE},
    admin.WAIT_BEYOND: {"name": MINE, "beyond": {"0": 0}, "wait_ms_max": 0},
    admin.SERVER_INFO: None,
    admin.NEW_PRODUCER: None,
    cluster.CLUSTER_STATUS: None,
    cluster.ADMIT_BROKER: {"broker": 9, "peer_address": "127.0.0.1:9"},
    cluster.DRAIN_BROKER: {"broker": 9},
    cluster.REMOVE_BROKER: {"broker": 9},
    cluster.REPLACE_DISK: {"broker": 9},
    cluster.REASSIGN: {"stream": MINE},
    cluster.REBALANCE: None,
    cluster.ELECT_LEADER: {"stream": MINE, "leader": 1},
    cluster.ADD_PARTITIONS: {"name": MINE, "count": 2},
    transactions.BEGIN_TRANSACTION: {
        "id": MINE,
        "nonce": "12345678",
        "timeout_ms": 1000,
        "batch": [OURS, 1],
    },
    transactions.ADD_TO_TRANSACTION: {
        "id": MINE,
        "producer": _PRODUCER,
        "partitions": [[MINE, 0], [OURS, 0]],
    },
    transactions.PREPARE_TRANSACTION: {"id": MINE, "producer": _PRODUCER},
    transactions.END_TRANSACTION: {"id": MINE, "producer": _PRODUCER, "commit": True},
    transactions.END_PREPARED: {"id": MINE, "staged": "1.0", "commit": True},
    transactions.COMMIT_STAGED: {
        "transaction_id": MINE,
        "batch": 1,
        "parts": [],
        "fingerprint": "f",
    },
    transactions.LAST_PUBLISHED: {"transaction_id": MINE},
    transactions.LIST_TRANSACTIONS: None,
    groups.JOIN_GROUP: {**_MEMBER, "streams": [MINE, OURS], "session_ms": 10_000},
    groups.GROUP_HEARTBEAT: {**_MEMBER, "epoch": 0},
    groups.LEAVE_GROUP: _MEMBER,
    groups.COMMIT_OFFSETS: {"group": MINE, "positions": {MINE: {"0": 1}}},
    groups.GROUP_INFO: {"group": MINE},
    groups.LIST_GROUPS: None,
    groups.DELETE_GROUP: {"group": MINE},
    access.LIST_RULES: None,
    access.GRANT: _RULES,
    access.REVOKE: _RULES,
    access.LIST_TOKENS: None,
    access.ADD_TOKEN: {"id": "0123abcd", "principal": "app", "sha256": "A" * 43 + "="},
    access.REVOKE_TOKEN: {"id": "0123abcd"},
    quotas.LIST_QUOTAS: None,
    quotas.SET_QUOTA: {"principal": "app", "requests_per_s": 5},
    quotas.REMOVE_QUOTA: {"principal": "app"},
    schemas.SET_SCHEMA: {"stream": MINE, "text": "id BIGINT"},
    schemas.LIST_SCHEMA: {"stream": MINE},
    schemas.DELETE_SCHEMA: {"stream": MINE},
    encryption.LIST_KEYS: None,
    encryption.ROTATE_KEYS: {"stream": MINE},
    local.LOCAL_FILES: {"stream": MINE},
    monitoring.BROKER_STATUS: None,
    monitoring.METRIC_HISTORY: None,
    monitoring.LIST_EVENTS: None,
    monitoring.LIST_CONNECTIONS: None,
    monitoring.READ_TRACE: None,
    backup.METADATA_SNAPSHOT: None,
    backup.READ_LOG: {"stream": MINE, "partition": 0, "log_id": 1, "offset": 0},
}

BODIES: Final[dict[str, bytes]] = {
    command.name: b"" if request is None else encode(request)
    for command, request in _REQUESTS.items()
}
"""The encoded body of each command, by name."""
