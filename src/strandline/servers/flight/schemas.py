"""Handlers of the commands about a stream's schema.

Rule: once a version is set, every broker must answer with it, because publishers use it next. So
each answer follows a read barrier.
"""

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
    earlier = _newest(context, request.stream)
    try:
        version = next_version(
            earlier,
            request.text,
            kind=request.format,
            message=request.message,
            registry_id=request.registry_id,
            now_ns=broker.clock.now_ns(),
        )
    except ModuleNotFoundError as error:
        raise InvalidRequestError(f"at the broker, {install_hint(error)}") from error
    if version not in earlier:
        context.run(broker.change(AddSchema(request.stream, version)))
    return [_described(request.stream, version)]


@handles(wire.LIST_SCHEMA)
def _list(context: ActionContext, request: wire.WhoseSchema) -> list[wire.SchemaInfo]:
    return [_described(request.stream, version) for version in _newest(context, request.stream)]


@handles(wire.DELETE_SCHEMA)
def _delete(context: ActionContext, request: wire.WhoseSchema) -> list[None]:
    context.run(context.broker.change(DeleteSchema(request.stream)))
    return []


def _newest(context: ActionContext, stream: str) -> tuple[SchemaVersion, ...]:
    """Return the versions that were set before this call at any broker."""
    context.run(context.broker.know_newest())
    return context.broker.image.stream(stream).schema


def _described(stream: str, version: SchemaVersion) -> wire.SchemaInfo:
    return wire.SchemaInfo(stream=stream, **msgspec.structs.asdict(version))
