"""Schemas of a client: the versions of the schema of a stream's values."""

import base64

from strandline.api import schemas
from strandline.api.schemas import SchemaInfo
from strandline.client.arguments import whole_number
from strandline.client.cluster_client import ClusterClient
from strandline.errors import InvalidConfigError, InvalidRequestError
from strandline.values.schema import SchemaFormat


class Schemas:
    """The schemas of streams. Returned by ``Client.schemas``.

    Args:
        brokers: the brokers that are asked.
    """

    def __init__(self, brokers: ClusterClient) -> None:
        self._brokers = brokers

    def set(
        self,
        stream: str,
        text: str | bytes,
        *,
        format: SchemaFormat | None = None,  # noqa: A002 - the field's name in the answer
        message: str | None = None,
        registry_id: int | None = None,
    ) -> SchemaInfo:
        """Add a version to a stream's schema; if the newest is the same, return that one.

        Args:
            stream: the stream's name.
            text: columns as Spark writes them, ``id BIGINT NOT NULL, name STRING``, or as JSON, a
                list of objects with ``name``, ``type`` and, if wanted, ``nullable`` and ``id``; or
                a JSON Schema, or an Avro schema, in UTF-8; for
                ``protobuf`` the bytes of a ``FileDescriptorSet``, as ``protoc --include_imports
                --descriptor_set_out`` writes it, or these in Base64.
            format: ``json``, ``avro`` or ``protobuf``; by default recognized from the text, except
                for
                ``protobuf``.
            message: for ``protobuf``, the full name of the message type of values; not needed if
                the
                last file has only one.
            registry_id: the id of this version in a schema registry, by which framed values name
                it.

        Raises:
            InvalidConfigError: the text is no schema, or values of earlier versions could not be
                read with it; the message names the column.
            UnknownStreamError: there is no such stream.
            NotAllowedError: the caller does not administer the stream.
        """
        body = schemas.SetSchemaRequest(
            stream=stream,
            text=_checked(text, is_binary=format == "protobuf"),
            format=format,
            message=message,
            registry_id=registry_id,
        )
        [found] = self._brokers.change(schemas.SET_SCHEMA, body)
        return found

    def list(self, stream: str) -> list[SchemaInfo]:
        """Return the versions of a stream's schema, the oldest first; empty if it has none.

        Raises:
            UnknownStreamError: there is no such stream.
        """
        return self._brokers.ask(schemas.LIST_SCHEMA, schemas.WhoseSchema(stream=stream))

    def get(self, stream: str, version: int | None = None) -> SchemaInfo:
        """Return a version of a stream's schema; by default the newest.

        Raises:
            InvalidRequestError: there is no such version, or no schema, or ``version`` is no
                number.
            UnknownStreamError: there is no such stream.
        """
        found = self.list(stream)
        if not found:
            raise InvalidRequestError(
                f"stream {stream!r} has no schema; set one with 'strandline stream schema set "
                f"{stream} FILE'"
            )
        number = found[-1].version if version is None else whole_number(version, "version")
        if not 1 <= number <= len(found):
            raise InvalidRequestError(
                f"the schema of stream {stream!r} has the versions 1 to {len(found)}, not {version}"
            )
        return found[number - 1]

    def delete(self, stream: str) -> None:
        """Delete all versions of a stream's schema; the next version is 1 again.

        Raises:
            UnknownStreamError: there is no such stream.
            NotAllowedError: the caller does not administer the stream.
        """
        self._brokers.change(schemas.DELETE_SCHEMA, schemas.WhoseSchema(stream=stream))


def _checked(text: str | bytes, *, is_binary: bool) -> str:
    """Return the text of a schema for a request, if it can be one."""
    if is_binary and isinstance(text, bytes):
        text = base64.b64encode(text)
    try:
        found = text.decode() if isinstance(text, bytes) else text
        size = len(found.encode()) and len(found)
    except (AttributeError, UnicodeError) as error:
        raise InvalidConfigError(
            f"the schema is no text in UTF-8: {error}; for descriptors of Protocol Buffers give "
            "format='protobuf'"
        ) from error
    if not 0 < size <= schemas.SCHEMA_CHARACTERS_MAX:
        raise InvalidConfigError(
            f"the schema has {size:,} characters; it takes 1 to {schemas.SCHEMA_CHARACTERS_MAX:,}: "
            "leave columns or descriptions out"
        )
    return found
