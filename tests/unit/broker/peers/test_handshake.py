"""The handshake: accepted peers, and the reasons for rejections."""

import msgspec
import pytest

from strandline.broker.peers.errors import HandshakeError, HandshakeRejection
from strandline.broker.peers.frame import Frame, FrameDecoder, encode_frame
from strandline.broker.peers.handshake import (
    MAGIC,
    VERSION,
    PeerIdentity,
    accept_answer,
    accept_hello,
    encode_hello,
    encode_rejection,
)
from strandline.types import BrokerId

ME = PeerIdentity(cluster_id="c1", broker_id=BrokerId(1), incarnation="a")
PEER = PeerIdentity(cluster_id="c1", broker_id=BrokerId(2), incarnation="b")
KNOWN = {BrokerId(2), BrokerId(3)}


def frame_of(buffers):
    decoder = FrameDecoder(frame_bytes_max=4096, attachments_max=0)
    [frame] = decoder.feed(b"".join(buffers))
    return frame


def hello_with(**changes):
    """A hello of PEER to ME, with some fields changed or (None) left out."""
    fields = {
        "kind": "hello",
        "magic": MAGIC,
        "version": VERSION,
        "cluster_id": "c1",
        "broker_id": 2,
        "incarnation": "b",
        "to": 1,
    } | changes
    kept = {key: value for key, value in fields.items() if value is not None}
    return frame_of(encode_frame(0, msgspec.msgpack.encode(kept)))


def test_both_sides_learn_who_the_other_is():
    """A hello is accepted, its answer too, and each names the incarnation of the other."""
    hello = accept_hello(frame_of(encode_hello(PEER, BrokerId(1))), ME, KNOWN, certified=None)
    assert (hello.broker_id, hello.incarnation) == (2, "b")
    answer = frame_of(encode_hello(ME, BrokerId(2)))
    assert accept_answer(answer, PEER, BrokerId(1), certified=None).incarnation == "a"


@pytest.mark.parametrize(
    ("changes", "reason", "what"),
    [
        ({"magic": "other"}, HandshakeRejection.NOT_A_PEER, "not a broker"),
        ({"magic": None}, HandshakeRejection.NOT_A_PEER, "cannot decode the handshake: "),
        (
            {"version": 2, "cluster_id": None},
            HandshakeRejection.VERSION,
            "protocol 2 is not supported, 1 is",
        ),
        (
            {"cluster_id": "c2"},
            HandshakeRejection.OTHER_CLUSTER,
            "is of cluster 'c2', broker 1 of 'c1'",
        ),
        ({"cluster_id": None}, HandshakeRejection.NOT_A_PEER, "cluster_id"),
        ({"cluster_id": "c" * 129}, HandshakeRejection.NOT_A_PEER, "cluster_id"),
        ({"broker_id": 1}, HandshakeRejection.OWN_ID, "both ends are broker 1"),
        ({"broker_id": -1}, HandshakeRejection.NOT_A_PEER, "broker_id"),
        ({"broker_id": 9}, HandshakeRejection.UNKNOWN_BROKER, "broker 9 is not a member"),
        (
            {"broker_id": 9},
            HandshakeRejection.UNKNOWN_BROKER,
            "empty disk, name it in .*peers of broker",
        ),
        ({"to": 3}, HandshakeRejection.WRONG_BROKER, "this is broker 1, not broker 3"),
        ({"incarnation": ""}, HandshakeRejection.NOT_A_PEER, "incarnation"),
        ({"kind": "bye"}, HandshakeRejection.NOT_A_PEER, "cannot decode the handshake: "),
    ],
)
def test_a_hello_is_rejected_for_a_reason(changes, reason, what):
    """Each fault of a hello has its own reason and a hint."""
    with pytest.raises(HandshakeError, match=what) as caught:
        accept_hello(hello_with(**changes), ME, KNOWN, certified=None)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, b""),
        Frame(0, b""),
        Frame(0, b"\xc1"),
        Frame(0, b"\x91" * 4000),
        Frame(0, msgspec.msgpack.encode([1, 2])),
    ],
    ids=["channel", "empty", "not-msgpack", "deep", "list"],
)
def test_any_other_first_frame_is_rejected(frame):
    """A frame that is not a handshake is rejected as such, without a library's error."""
    with pytest.raises(HandshakeError) as caught:
        accept_hello(frame, ME, KNOWN, certified=None)
    assert caught.value.reason is HandshakeRejection.NOT_A_PEER


def test_a_rejection_is_no_hello():
    """A connection that begins with a rejection is rejected."""
    rejection = frame_of(encode_rejection(HandshakeError(HandshakeRejection.VERSION, "no")))
    with pytest.raises(HandshakeError, match="without a request"):
        accept_hello(rejection, ME, KNOWN, certified=None)


def test_the_caller_hears_why_it_was_rejected():
    """Reason and text cross the wire."""
    error = HandshakeError(HandshakeRejection.UNKNOWN_BROKER, "broker 2 is not a member")
    with pytest.raises(HandshakeError, match="by broker 1: broker 2 is not a member") as caught:
        accept_answer(frame_of(encode_rejection(error)), PEER, BrokerId(1), certified=None)
    assert caught.value.reason is HandshakeRejection.UNKNOWN_BROKER


def test_a_reason_of_a_later_version_is_understood_as_a_rejection():
    """An unknown reason does not break the decoder."""
    fields = {"kind": "rejected", "magic": MAGIC, "version": VERSION, "reason": "new", "text": "t"}
    frame = frame_of(encode_frame(0, msgspec.msgpack.encode(fields)))
    with pytest.raises(HandshakeError, match="rejected by broker 1: t"):
        accept_answer(frame, PEER, BrokerId(1), certified=None)


def test_another_broker_at_the_address_is_not_talked_to():
    """The answering broker must be the expected one."""
    third = PeerIdentity(cluster_id="c1", broker_id=BrokerId(3), incarnation="c")
    with pytest.raises(HandshakeError, match="broker 3 answers at the address of broker 2"):
        accept_answer(frame_of(encode_hello(third, BrokerId(1))), ME, BrokerId(2), certified=None)


@pytest.mark.parametrize("certified", [frozenset(), frozenset({BrokerId(3)})])
def test_the_certificate_must_name_the_broker(certified):
    """With TLS, both sides reject an id that the certificate does not name."""
    hello = frame_of(encode_hello(PEER, BrokerId(1)))
    with pytest.raises(HandshakeError, match="broker-2") as caught:
        accept_hello(hello, ME, KNOWN, certified=certified)
    assert caught.value.reason is HandshakeRejection.CERTIFICATE
    with pytest.raises(HandshakeError, match="broker-2"):
        accept_answer(hello, ME, BrokerId(2), certified=certified)


def test_handshakes_fit_their_limit():
    """The longest hello and the longest rejection are below the 4 KiB a stranger may send."""
    long = PeerIdentity(cluster_id="c" * 128, broker_id=BrokerId(2**31 - 1), incarnation="i" * 128)
    assert sum(map(len, encode_hello(long, BrokerId(0)))) < 4096
    assert (
        sum(map(len, encode_rejection(HandshakeError(HandshakeRejection.VERSION, "ü" * 5000))))
        < 4096
    )
