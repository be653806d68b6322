"""Partitions that take no records for a while: readonly, and paused until somebody wants them.

Rule: a state is about a stream's partition and survives every change of leader; it is kept beside
the partitions, because no leader has to know of it before its next decision.
"""

import msgspec

from strandline.errors import UnknownPartitionError
from strandline.metadata.commands import PausePartitions, SetReadonly
from strandline.metadata.image import MetadataImage, PartitionState, StreamImage


def set_readonly(image: MetadataImage, command: SetReadonly) -> MetadataImage:
    """Make partitions readonly, or writable again."""
    stream = image.stream(command.stream)
    states = dict(stream.states)
    for number in _numbers(stream, command.partitions):
        state = states.get(number, PartitionState())
        states[number] = msgspec.structs.replace(
            state,
            is_readonly=command.is_on,
            readonly_ns=_times(state.readonly_ns, command.now_ns, is_on=command.is_on),
        )
    return _with_states(image, command.stream, states)


def pause_partitions(image: MetadataImage, command: PausePartitions) -> MetadataImage:
    """Pause partitions, or resume them: all of the stream, if one of those named asks for it."""
    stream = image.stream(command.stream)
    states = dict(stream.states)
    numbers = _numbers(stream, command.partitions)
    if not command.is_on and any(states[n].resumes_all for n in numbers if n in states):
        numbers = list(range(len(stream.partitions)))
    for number in numbers:
        state = states.get(number, PartitionState())
        states[number] = msgspec.structs.replace(
            state,
            is_paused=command.is_on,
            resumes_all=command.is_on and command.resumes_all,
            paused_ns=_times(state.paused_ns, command.now_ns, is_on=command.is_on),
        )
    return _with_states(image, command.stream, states)


def _numbers(stream: StreamImage, wanted: tuple[int, ...]) -> list[int]:
    """The partitions named, or all."""
    there = range(len(stream.partitions))
    for number in wanted:
        if number not in there:
            raise UnknownPartitionError(
                f"stream {stream.config.name!r} has partitions 0 to {len(there) - 1}, not {number}"
            )
    return list(wanted or there)


def _times(times: tuple[int, int], now_ns: int, *, is_on: bool) -> tuple[int, int]:
    """First and latest time of an event."""
    return (times[0] or now_ns, now_ns) if is_on else times


def _with_states(
    image: MetadataImage, name: str, states: dict[int, PartitionState]
) -> MetadataImage:
    stream = msgspec.structs.replace(image.streams[name], states=states)
    return msgspec.structs.replace(image, streams={**image.streams, name: stream})
