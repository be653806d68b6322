"""Events: what happened to streams and groups, kept until the activity stream has them.

A change and its event are one entry of the metadata log: neither is without the other, whoever dies
in between. Whoever leads the stream stores the events in the order of their ids, and then lets
them be forgotten; who leads next finds the last id in the stream, and goes on after it.

Rules: ids grow by one and are never used again; nothing is kept while there is no such stream.
"""

from typing import Final

import msgspec

from strandline.core.metadata.commands import (
    Command,
    CreateStream,
    ForgetEvents,
    PausePartitions,
    SetReadonly,
)
from strandline.core.metadata.image import Event, MetadataImage, Told
from strandline.core.metadata.states import affected

ACTIVITY_STREAM: Final = "__activity"
EVENTS_MAX: Final = 1_000
"""More than nobody stores for so long; the oldest are forgotten, which the ids show."""


def noted(before: MetadataImage, image: MetadataImage, command: Command) -> MetadataImage:
    """The image after a command, with the event that tells of it."""
    if not isinstance(command, Told):
        return image
    if ACTIVITY_STREAM not in image.streams:
        return msgspec.structs.replace(image, events=()) if image.events else image
    if isinstance(command, CreateStream):
        # Where copies are is large, and nobody's news; keys are nobody's business.
        command = msgspec.structs.replace(command, assignment=(), keys=())
    elif isinstance(command, SetReadonly | PausePartitions):
        numbers = affected(before, command)
        if not numbers:
            return image  # it was resumed already
        command = msgspec.structs.replace(command, partitions=numbers)
    event = Event(image.next_event_id, command)
    return msgspec.structs.replace(
        image, events=(*image.events, event)[-EVENTS_MAX:], next_event_id=event.id + 1
    )


def forget_events(image: MetadataImage, command: ForgetEvents) -> MetadataImage:
    """Let go of events that are stored."""
    kept = tuple(event for event in image.events if event.id > command.through)
    return msgspec.structs.replace(image, events=kept)
