"""The permissions that creating a stream needs."""

import pytest

from strandline.api.required_permissions import needs_of_stream
from strandline.config import StreamConfig


def needed(**config):
    """(kind, name, operations) of each need."""
    needs = needs_of_stream(StreamConfig(name="n", subject="s", **config))
    return {(each.resource.kind, each.resource.name, *each.operations) for each in needs}


BASE = {("stream", "n", "admin"), ("subject", "s", "read")}


@pytest.mark.parametrize(
    ("config", "more"),
    [
        ({}, set()),
        ({"partitions": 2, "partition_by": "key"}, set()),
        ({"partitions": 2, "partition_by": "suffix"}, {("subject", "s.*", "read")}),
        ({"queue_group": "q"}, {("group", "q", "group")}),
    ],
)
def test_a_stream_reads_what_it_records(config, more):
    """Its subject, the partitions' subjects with the suffix rule, and its queue group."""
    assert needed(**config) == BASE | more
