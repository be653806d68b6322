"""Handlers of the encryption actions."""

from typing import Any

from strandline.api import encryption
from strandline.api.encryption import KeyInfo
from strandline.api.wire import decode, refuse_body
from strandline.broker.broker import Broker
from strandline.core.metadata.image import StreamImage
from strandline.servers.flight.actions import ActionContext, Handler
from strandline.servers.flight.cluster import Change


def encryption_actions(broker: Broker, change: Change) -> dict[str, Handler]:
    """Return the handlers by action.

    Args:
        broker: the broker.
        change: runs a change on the loop.
    """

    def list_keys(body: bytes, _: ActionContext) -> list[Any]:
        refuse_body(body, encryption.LIST_KEYS)
        return [key for stream in broker.image.streams.values() for key in _described(stream)]

    def rotate_keys(body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, encryption.RotateKeys, what=encryption.ROTATE_KEYS)
        command = broker.keys.rotation(request.stream, has_new_key=request.has_new_key)
        change(broker.change(command))
        return _described(broker.image.stream(request.stream))

    return {encryption.LIST_KEYS: list_keys, encryption.ROTATE_KEYS: rotate_keys}


def _described(stream: StreamImage) -> list[KeyInfo]:
    return [
        KeyInfo(stream=stream.config.name, data_key=key.number, master_key=key.master)
        for key in stream.keys
    ]
