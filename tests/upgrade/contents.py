"""What a broker's streams have, as JSON, to compare what two versions show."""

import base64
from typing import Any

import msgspec
import pyarrow as pa

from strandline.client.client import Client

COLUMNS = ["partition", "offset", "timestamp", "subject", "key", "value", "headers"]


def contents(client: Client) -> dict[str, Any]:
    """Return settings, offsets and records of every stream, and what else is stored."""
    streams = client.list_streams()
    return {
        "streams": {
            info.name: {
                "config": msgspec.to_builtins(info.config),
                "partitions": [
                    [each.log_start_offset, each.log_end_offset] for each in info.partitions
                ],
                "records": records(client, info.name),
            }
            for info in streams
            if not info.name.startswith("__")
        },
        "groups": {
            group.group: {
                str(name): offset
                for name, offset in client.groups.committed_offsets(group.group).items()
            }
            for group in client.groups.list()
        },
        "rules": [msgspec.to_builtins(rule) for rule in client.access.rules()],
        "tokens": [[token.id, token.principal] for token in client.access.tokens()],
        "quotas": [msgspec.to_builtins(each) for each in client.quotas.list()],
    }


def records(client: Client, stream: str) -> list[list[Any]]:
    """Return every column of every record, bytes in Base64."""
    rows = client.read(stream, columns=COLUMNS).read_all()
    index = rows.schema.get_field_index("timestamp")
    rows = rows.set_column(index, "timestamp", rows["timestamp"].cast(pa.int64()))
    rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
    return [[_plain(value) for value in row.values()] for row in rows.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
