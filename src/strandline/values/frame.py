"""The framing of Confluent's registry: a zero byte, then the id of a schema, before a value.

Rules: pure. JSON never begins with a zero byte. An Avro value may; ``avro`` decides whether it has
a frame.
"""

from collections.abc import Callable, Sequence

from strandline.values.schema import SchemaVersion

_MARK = b"\x00"
_ID_BYTES = 4
FRAME_BYTES = len(_MARK) + _ID_BYTES


def frame(registry_id: int) -> bytes:
    """Return the bytes that a registry's clients write before a value."""
    return _MARK + registry_id.to_bytes(_ID_BYTES, "big")


def framed_id(value: bytes) -> int | None:
    """Return the id in the frame of a value; None: it has no frame."""
    if not value.startswith(_MARK) or len(value) <= FRAME_BYTES:
        return None
    return int.from_bytes(value[len(_MARK) : FRAME_BYTES], "big")


def json_unframer(versions: Sequence[SchemaVersion]) -> Callable[[bytes], bytes]:
    """Return a function that removes the frame from a JSON value, if it has one.

    The function raises ValueError if no version has the frame's id.

    Args:
        versions: the versions of a stream's schema.
    """
    known = {each.registry_id for each in versions}

    def unframed(value: bytes) -> bytes:
        number = framed_id(value)
        if number is None:
            return value
        if number not in known:
            raise ValueError(
                f"no version of the schema has the registry's id {number} of its frame"
            )
        return value[FRAME_BYTES:]

    return unframed
