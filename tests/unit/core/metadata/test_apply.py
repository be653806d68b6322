"""The metadata state machine: the effects and rejections of commands."""

import pytest

from strandline.config import StreamConfig
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import CreateStream, DeleteStream
from strandline.core.metadata.image import MetadataImage
from strandline.errors import (
    InvalidConfigError,
    InvalidSubjectError,
    StreamExistsError,
    UnknownPartitionError,
    UnknownStreamError,
)


def create(image=None, **settings):
    config = StreamConfig(**{"name": "orders", "subject": "orders.>", **settings})
    return apply(image or MetadataImage(), CreateStream(config=config, now_ns=5))


def test_a_stream_gets_a_log_per_partition():
    """Creating a stream gives each partition a log id of its own and resolves its rule."""
    image = create(partitions=3)
    stream = image.stream("orders")
    assert [p.log_id for p in stream.partitions] == [1, 2, 3]
    assert stream.config.partition_by == "subject"
    assert stream.created_ns == 5


def test_log_ids_are_never_reused():
    """A stream made after a deletion gets new log ids, so old journal entries cannot reach it."""
    image = apply(create(partitions=2), DeleteStream(name="orders"))
    assert create(image).stream("orders").partitions[0].log_id == 3


def test_a_name_is_taken_once():
    """A second stream of the same name is rejected."""
    with pytest.raises(StreamExistsError, match="exists"):
        create(create())


def test_unknown_names_say_what_there_is():
    """Asking for an unknown stream or partition names those that exist."""
    image = create(partitions=2)
    with pytest.raises(UnknownStreamError, match="there are: orders"):
        image.stream("payments")
    with pytest.raises(UnknownStreamError, match=r"did you mean 'orders'\?"):
        image.stream("order")
    with pytest.raises(UnknownStreamError, match="create it with"):
        MetadataImage().stream("order")
    with pytest.raises(UnknownPartitionError, match="0 to 1"):
        image.partition("orders", 2)


def test_commands_do_not_change_the_image_they_were_given():
    """An image is a value: applying a command leaves the old one as it was."""
    before = create()
    apply(before, DeleteStream(name="orders"))
    assert "orders" in before.streams


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"name": ""}, InvalidConfigError),
        ({"name": "../etc"}, InvalidConfigError),
        ({"name": "a/b"}, InvalidConfigError),
        ({"name": "x" * 300}, InvalidConfigError),
        ({"subject": ""}, InvalidSubjectError),
        ({"subject": "a..b"}, InvalidSubjectError),
        ({"subject": "a b"}, InvalidSubjectError),
        ({"queue_group": "two words"}, InvalidConfigError),
        ({"queue_group": "g" * 201}, InvalidConfigError),
        ({"partitions": 0}, InvalidConfigError),
        ({"partitions": 10**9}, InvalidConfigError),
        ({"retention_age_ms": -1}, InvalidConfigError),
        ({"retention_records": 1 << 63}, InvalidConfigError),
        ({"segment_bytes": 1 << 63}, InvalidConfigError),
        ({"segment_bytes": 1}, InvalidConfigError),
        ({"segment_age_ms": 0}, InvalidConfigError),
        ({"acks": "replicated"}, InvalidConfigError),
        ({"subject": "a.>", "partitions": 2, "partition_by": "suffix"}, InvalidConfigError),
    ],
)
def test_impossible_settings_are_rejected(settings, error):
    """A stream with invalid settings is rejected with the setting named."""
    with pytest.raises(error):
        create(**settings)
