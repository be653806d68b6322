"""Partition states that block writes: readonly, and paused until somebody publishes or resumes.

Rule: a state survives every change of leader. It is kept apart from the partition's replication
state, because no leader needs it for an election.
"""

import msgspec

from strandline.core.metadata.commands import PausePartitions, SetReadonly
from strandline.core.metadata.image import MetadataImage, PartitionState, StreamImage
from strandline.errors import UnknownPartitionError


def set_readonly(image: MetadataImage, command: SetReadonly) -> MetadataImage:
    """Make partitions readonly, or writable again."""
    stream = image.stream(command.stream)
    states = dict(stream.states)
    for number in _numbers(stream, command.partitions):
        state = states.get(number, PartitionState())
        states[number] = msgspec.structs.replace(
            state,
            is_readonly=command.is_on,
            readonly_ns=_times(state.readonly_ns, command.now_ns),
        )
    return _with_states(image, command.stream, states)


def pause_partitions(image: MetadataImage, command: PausePartitions) -> MetadataImage:
    """Pause partitions, or resume them.

    The last pause command decides, for the whole stream, whether resuming one partition resumes
    all.
    """
    states = dict(image.stream(command.stream).states)
    for number in affected(image, command):
        state = states.get(number, PartitionState())
        states[number] = msgspec.structs.replace(
            state, is_paused=command.is_on, paused_ns=_times(state.paused_ns, command.now_ns)
        )
    for number, state in states.items():
        resumes_all = command.resumes_all if command.is_on else state.resumes_all
        states[number] = msgspec.structs.replace(state, resumes_all=state.is_paused and resumes_all)
    return _with_states(image, command.stream, states)


def affected(image: MetadataImage, command: SetReadonly | PausePartitions) -> tuple[int, ...]:
    """Return the partitions that a command changes, given the image before it.

    Resuming a partition that is not paused changes nothing.
    """
    stream = image.stream(command.stream)
    numbers = _numbers(stream, command.partitions)
    if isinstance(command, SetReadonly) or command.is_on:
        return tuple(numbers)
    paused = {number for number, state in stream.states.items() if state.is_paused}
    if any(stream.states[number].resumes_all for number in paused.intersection(numbers)):
        return tuple(sorted(paused))
    return tuple(number for number in numbers if number in paused)


def _numbers(stream: StreamImage, wanted: tuple[int, ...]) -> list[int]:
    """Return the partitions that a command names; all if it names none."""
    there = range(len(stream.partitions))
    for number in wanted:
        if number not in there:
            raise UnknownPartitionError(
                f"stream {stream.config.name!r} has partitions 0 to {len(there) - 1}, not {number}"
            )
    return list(wanted or there)


def _times(times: tuple[int, int], now_ns: int) -> tuple[int, int]:
    """Return the times of the first and the latest change, which is now."""
    return times[0] or now_ns, now_ns


def _with_states(
    image: MetadataImage, name: str, states: dict[int, PartitionState]
) -> MetadataImage:
    return image.with_streams({name: msgspec.structs.replace(image.streams[name], states=states)})
