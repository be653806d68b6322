"""The admin API's messages: strict where clients write, lenient where brokers answer."""

import pytest

from strandline.api.admin import (
    DeleteRecords,
    OffsetsRequest,
    PartitionInfo,
    StreamInfo,
    StreamName,
    WaitRequest,
)
from strandline.api.wire import decode, encode
from strandline.config import StreamConfig
from strandline.errors import InvalidRequestError


@pytest.mark.parametrize(
    "message",
    [
        StreamName(name="s"),
        DeleteRecords(name="s", partition=2, offset=5),
        OffsetsRequest(name="s", at=17),
        WaitRequest(name="s", beyond={0: 5}, wait_ms_max=10),
    ],
)
def test_a_request_survives_the_wire(message):
    """Decoding returns the encoded message."""
    assert decode(encode(message), type(message), what="body") == message


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"name":"s","x":1}', StreamName),
        (b'{"name":"s","offset":-1}', DeleteRecords),
        (b'{"name":"s","beyond":{}}', WaitRequest),
        (b'{"name":"s","beyond":{"x":1}}', WaitRequest),
        (b'{"name":"s","beyond":{"0":1},"wait_ms_max":99999999}', WaitRequest),
    ],
)
def test_a_wrong_request_is_rejected(data, kind):
    """Unknown fields, negative offsets, empty or endless waits are the caller's errors."""
    with pytest.raises(InvalidRequestError):
        decode(data, kind, what="body")


def test_a_client_takes_the_answer_of_a_newer_broker():
    """Unknown fields are ignored."""
    info = PartitionInfo(
        partition=0, log_start_offset=1, high_watermark=3, log_end_offset=4, size_bytes=9
    )
    stream = StreamInfo(
        config=StreamConfig(name="s", subject="t"), created_ns=1, partitions=(info,)
    )
    newer = encode(stream).replace(b'"created_ns":1', b'"created_ns":1,"leader":"b1"')
    assert decode(newer, StreamInfo, what="answer") == stream
    assert (stream.name, stream.subject, info.records) == ("s", "t", 2)
