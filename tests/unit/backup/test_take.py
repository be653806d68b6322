"""A backup of streams that are deleted, or made anew, while it copies them."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from strandline.backup.take import _Copier
from strandline.config import StreamConfig
from strandline.core.metadata.image import MetadataImage, StreamImage, StreamTable
from strandline.core.metadata.snapshot import encode_json
from strandline.errors import UnavailableError


def stream_image(name, created_ns):
    """A stream without partitions."""
    config = StreamConfig(name=name, subject=name)
    return StreamImage(config=config, created_ns=created_ns, partitions=())


STREAM, ANEW = stream_image("orders", 5), stream_image("orders", 6)


def image_of(*streams):
    """The metadata with these streams."""
    return replace(
        MetadataImage(), streams=StreamTable({each.config.name: each for each in streams})
    )


def copier(before, after):
    """One that began with an image, and would get another one if it asked."""
    answer = SimpleNamespace(image=encode_json(after))
    brokers = SimpleNamespace(ask=lambda *_: [answer])
    return _Copier(brokers, None, 1, before=None, image=before, report=print, verify=False)


def failing(_):
    raise UnavailableError("the file is gone")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (image_of(STREAM), image_of()),
        (image_of(STREAM), image_of(ANEW)),
        (image_of(), image_of(STREAM)),
        (image_of(ANEW), image_of(STREAM)),
    ],
)
def test_a_stream_that_is_gone_is_left_out(before, after):
    """Deleted, or another one of its name: what was asked of it is not its answer."""
    backup = copier(before, after)
    assert backup.unless_gone(STREAM, failing) is None
    assert backup.left_out == ["orders"]


def test_an_error_of_a_stream_that_is_there_ends_the_backup():
    """It is not taken for a deletion."""
    backup = copier(image_of(STREAM), image_of(STREAM, stream_image("other", 9)))
    with pytest.raises(UnavailableError):
        backup.unless_gone(STREAM, failing)
    assert backup.left_out == []
    assert backup.unless_gone(STREAM, lambda each: each.created_ns) == 5
