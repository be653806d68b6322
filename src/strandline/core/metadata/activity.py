"""Events about streams and groups, kept in the image until the activity stream has stored them.

A change and its event are one entry of the metadata log, so a crash cannot separate them. The
leader of the activity stream stores the events in the order of their ids, then has them forgotten.
The next leader finds the last id in the stream and continues after it.

Rules: ids grow by one and are never used again; no event is kept while the stream does not exist.
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
from strandline.core.metadata.image import Event, MetadataImage, ReportedCommand
from strandline.core.metadata.states import affected

ACTIVITY_STREAM: Final = "__activity"
EVENTS_MAX: Final = 1_000
"""The most events kept; beyond it the oldest are dropped, which a gap in the ids shows."""


def noted(before: MetadataImage, image: MetadataImage, command: Command) -> MetadataImage:
    """Return the image after a command, with an event if the activity stream reports it."""
    if not isinstance(command, ReportedCommand):
        return image
    if ACTIVITY_STREAM not in image.streams:
        return msgspec.structs.replace(image, events=()) if image.events else image
    if isinstance(command, CreateStream):
        # Assignments are large and of no interest to readers; keys must not be published.
        command = msgspec.structs.replace(command, assignment=(), keys=())
    elif isinstance(command, SetReadonly | PausePartitions):
        numbers = affected(before, command)
        if not numbers:
            return image  # no partition was paused
        command = msgspec.structs.replace(command, partitions=numbers)
    event = Event(image.next_event_id, command)
    return msgspec.structs.replace(
        image, events=(*image.events, event)[-EVENTS_MAX:], next_event_id=event.id + 1
    )


def forget_events(image: MetadataImage, command: ForgetEvents) -> MetadataImage:
    """Forget events that are stored."""
    kept = tuple(event for event in image.events if event.id > command.through)
    return msgspec.structs.replace(image, events=kept)
