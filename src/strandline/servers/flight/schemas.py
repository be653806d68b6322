"""Handlers of the commands about a stream's schema."""

import msgspec

from strandline.api import schemas as wire
from strandline.core.metadata.commands import AddSchema, DeleteSchema
from strandline.errors import InvalidRequestError
from strandline.optional_dependencies import install_hint
from strandline.servers.flight.actions import ActionContext, handles
from strandline.values.schema import SchemaVersion


@handles(wire.SET_SCHEMA)
def _set(context: ActionContext, request: wire.SetSchemaRequest) -> list[wire.SchemaInfo]:
    from strandline.values.evolution import next_version

    broker = context.broker
    try:
        version = next_version(
            broker.image.stream(request.stream).schema,
            request.text,
            kind=request.format,
            registry_id=request.registry_id,
            now_ns=broker.clock.now_ns(),
        )
    except ModuleNotFoundError as error:
        raise InvalidRequestError(f"at the broker, {install_hint(error)}") from error
    if version not in broker.image.stream(request.stream).schema:
        context.run(broker.change(AddSchema(request.stream, version)))
    return [_described(request.stream, version)]


@handles(wire.LIST_SCHEMA)
def _list(context: ActionContext, request: wire.WhoseSchema) -> list[wire.SchemaInfo]:
    versions = context.broker.image.stream(request.stream).schema
    return [_described(request.stream, version) for version in versions]


@handles(wire.DELETE_SCHEMA)
def _delete(context: ActionContext, request: wire.WhoseSchema) -> list[None]:
    context.run(context.broker.change(DeleteSchema(request.stream)))
    return []


def _described(stream: str, version: SchemaVersion) -> wire.SchemaInfo:
    return wire.SchemaInfo(stream=stream, **msgspec.structs.asdict(version))
