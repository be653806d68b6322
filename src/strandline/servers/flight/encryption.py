"""Handlers of the encryption commands."""

from strandline.api.encryption import LIST_KEYS, ROTATE_KEYS, KeyInfo, RotateKeys
from strandline.core.metadata.image import StreamImage
from strandline.servers.flight.actions import ActionContext, handles


@handles(LIST_KEYS)
def _list_keys(context: ActionContext, _: None) -> list[KeyInfo]:
    streams = context.broker.image.streams.values()
    return [key for stream in streams for key in _described(stream)]


@handles(ROTATE_KEYS)
def _rotate_keys(context: ActionContext, request: RotateKeys) -> list[KeyInfo]:
    broker = context.broker
    command = broker.keys.rotation(request.stream, has_new_key=request.has_new_key)
    context.run(broker.change(command))
    return _described(broker.image.stream(request.stream))


def _described(stream: StreamImage) -> list[KeyInfo]:
    return [
        KeyInfo(stream=stream.config.name, data_key=key.number, master_key=key.master)
        for key in stream.keys
    ]
