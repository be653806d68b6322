"""The commands about the schema of a stream's values."""

from types import NoneType
from typing import Annotated, Final

import msgspec

from strandline.api.command import AdminCommand
from strandline.api.required_permissions import stream
from strandline.api.wire import Name, WireMessage
from strandline.values.schema import SchemaFormat, SchemaVersion

SCHEMA_CHARACTERS_MAX = 64 << 10


class SetSchemaRequest(WireMessage, frozen=True, kw_only=True):
    """A request to add a version to a stream's schema."""

    stream: Name
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=SCHEMA_CHARACTERS_MAX)]
    """The columns in Spark's notation, ``id BIGINT, name STRING``, or as JSON in the form in which
    they are listed; or a JSON Schema, or an Avro schema; for ``protobuf``, a ``FileDescriptorSet``
    in Base64."""
    format: SchemaFormat | None = None
    """None: recognized from the text, except for ``protobuf``."""
    message: Name | None = None
    """For ``protobuf``, the full name of the message type of values; None: there is only one."""
    registry_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None = None
    """The id of this version in a schema registry."""


class WhoseSchema(WireMessage, frozen=True, kw_only=True):
    """A reference to the schema of a stream."""

    stream: Name


class SchemaInfo(SchemaVersion, frozen=True, kw_only=True):
    """A version of a stream's schema."""

    stream: str


SET_SCHEMA: Final = AdminCommand(
    name="set_schema",
    help="Add a version to a stream's schema, unless the newest says the same.",
    request=SetSchemaRequest,
    result=SchemaInfo,
    needs=lambda it: [stream(it.stream, "admin")],
)
LIST_SCHEMA: Final = AdminCommand(
    name="list_schema",
    help="List the versions of a stream's schema, the oldest first.",
    request=WhoseSchema,
    result=SchemaInfo,
    needs=lambda it: [stream(it.stream, "read", "admin")],
)
DELETE_SCHEMA: Final = AdminCommand(
    name="delete_schema",
    help="Delete all versions of a stream's schema.",
    request=WhoseSchema,
    result=NoneType,
    needs=lambda it: [stream(it.stream, "admin")],
)
