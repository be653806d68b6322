"""Events of the activity stream, kept with the changes they tell of."""

from strandline.config import StreamConfig
from strandline.core.metadata import activity
from strandline.core.metadata.apply import apply
from strandline.core.metadata.check import check_image, check_step
from strandline.core.metadata.commands import (
    AllocateProducerIds,
    CreateStream,
    DeleteStream,
    ForgetEvents,
    PausePartitions,
    SetReadonly,
)
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import decode_image, encode_image


def after(*commands, image=None):
    """Return the image after commands, each of which leaves a valid image."""
    image = image or MetadataImage()
    for command in commands:
        before, image = image, apply(image, command)
        assert check_image(image) + check_step(before, image) == []
    return image


def create(name):
    return CreateStream(StreamConfig(name=name, subject=name), now_ns=1)


def told(image):
    return [(event.id, type(event.command).__name__) for event in image.events]


def test_events_are_kept_once_there_is_a_stream_for_them():
    """From the stream's creation on, with ids that grow by one; other changes give no event."""
    image = after(
        create("s"),
        create("__activity"),
        SetReadonly("s", (), is_on=True, now_ns=1),
        AllocateProducerIds(1),
        DeleteStream("s"),
    )
    assert told(image) == [(1, "CreateStream"), (2, "SetReadonly"), (3, "DeleteStream")]
    assert decode_image(encode_image(image)) == image


def test_an_event_names_the_partitions_that_changed():
    """Also where the order named none, for all, and where one partition resumed others."""
    three = CreateStream(StreamConfig(name="t", subject="t", partitions=3), now_ns=1)
    image = after(
        create("__activity"),
        three,
        PausePartitions("t", (), True, 2, True),
        PausePartitions("t", (1,), False, 3),
        PausePartitions("t", (1,), False, 4),
        PausePartitions("t", (2,), True, 5),
        SetReadonly("t", (), is_on=True, now_ns=6),
    )
    assert [event.command.partitions for event in image.events[2:]] == [
        (0, 1, 2),
        (0, 1, 2),
        (2,),
        (0, 1, 2),
    ]


def test_what_is_stored_is_forgotten():
    """Events up to the given id are forgotten; ids continue, and a repeat changes nothing."""
    image = after(create("__activity"), create("a"), create("b"), ForgetEvents(2))
    assert told(image) == [(3, "CreateStream")]
    image = after(ForgetEvents(2), ForgetEvents(3), create("c"), image=image)
    assert told(image) == [(4, "CreateStream")]


def test_without_the_stream_nothing_is_kept():
    """After deletion no events are kept; a new stream continues with unused ids."""
    image = after(create("__activity"), create("a"), DeleteStream("__activity"), create("b"))
    assert told(image) == []
    assert told(after(create("__activity"), image=image)) == [(3, "CreateStream")]


def test_what_nobody_stores_is_limited(monkeypatch):
    """The oldest go first, and the ids show it."""
    monkeypatch.setattr(activity, "EVENTS_MAX", 3)
    image = after(create("__activity"), *(create(f"s{n}") for n in range(5)))
    assert [event.id for event in image.events] == [4, 5, 6]
