"""The handshake: the first frame in each direction names its sender and its receiver. Pure.

The connecting broker sends ``Hello``. The other answers with a ``Hello`` of its own, or with
``Rejected`` and closes.

Rules: both sides check the other. Magic and version are checked first, so that a later version may
change the rest. A frame before the answer is an error. A restarted broker has a new incarnation, by
which ``session`` distinguishes its old connections from its new ones.
"""

from collections.abc import Container
from typing import Annotated, Final

import msgspec

from strandline.broker.peers.errors import HandshakeError, HandshakeRejection
from strandline.broker.peers.frame import Data, Frame, encode_frame
from strandline.errors import UNDECODABLE
from strandline.types import BrokerId

MAGIC: Final = "strandline-peer"
VERSION: Final = 1
HANDSHAKE_CHANNEL: Final = 0
"""The channel of the handshake; no other frame may use it."""
TEXT_MAX: Final = 512

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class PeerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a broker."""

    cluster_id: str
    broker_id: BrokerId
    incarnation: str
    """A random text, new at each start of the process."""
    directory_id: str = ""
    """A random text, created with the data directory, so that another disk has another."""


class _Opening(msgspec.Struct, frozen=True):
    """The fields with which a handshake of any version begins."""

    magic: str
    version: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", tag_field="kind"):
    """The first message of a connection: its sender, and the broker that it wants to reach."""

    magic: str = MAGIC
    version: int = VERSION
    cluster_id: Name
    broker_id: Id
    incarnation: Name
    to: Id
    directory_id: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Rejected(msgspec.Struct, frozen=True, kw_only=True, tag="rejected", tag_field="kind"):
    """The answer that rejects a connection; later versions may add reasons, so it is a string."""

    magic: str = MAGIC
    version: int = VERSION
    reason: str
    text: str


_decode_opening = msgspec.msgpack.Decoder(_Opening).decode
_decode_answer = msgspec.msgpack.Decoder(Hello | Rejected).decode


def encode_hello(me: PeerIdentity, to: BrokerId) -> list[Data]:
    """Encode the frame that opens a connection or accepts it."""
    hello = Hello(
        cluster_id=me.cluster_id,
        broker_id=me.broker_id,
        incarnation=me.incarnation,
        to=to,
        directory_id=me.directory_id,
    )
    return encode_frame(HANDSHAKE_CHANNEL, msgspec.msgpack.encode(hello))


def encode_rejection(error: HandshakeError) -> list[Data]:
    """Encode the frame that rejects a connection."""
    refused = Rejected(reason=error.reason.value, text=str(error)[:TEXT_MAX])
    return encode_frame(HANDSHAKE_CHANNEL, msgspec.msgpack.encode(refused))


def accept_hello(
    frame: Frame,
    me: PeerIdentity,
    known: Container[BrokerId],
    *,
    certified: frozenset[BrokerId] | None,
) -> Hello:
    """Return the hello of a broker that connected to this one.

    Args:
        frame: the first frame.
        me: this broker.
        known: the brokers of the cluster.
        certified: the brokers named in the peer's certificate; None without TLS.

    Raises:
        HandshakeError: this broker rejects the peer.
    """
    hello = _decode(frame)
    if isinstance(hello, Rejected):
        raise HandshakeError(HandshakeRejection.NOT_A_PEER, "a rejection without a request")
    _check(hello, me, certified)
    if hello.to != me.broker_id:
        raise HandshakeError(
            HandshakeRejection.WRONG_BROKER,
            f"this is broker {me.broker_id}, not broker {hello.to}: check the addresses",
        )
    if hello.broker_id not in known:
        raise HandshakeError(
            HandshakeRejection.UNKNOWN_BROKER,
            f"broker {hello.broker_id} is not a member of the cluster: admit it with 'strandline "
            "cluster add'; if it was removed, give it another number; if it is one, and broker "
            f"{me.broker_id} joins with an empty disk, name it in cluster.peers of broker "
            f"{me.broker_id}",
        )
    return hello


def accept_answer(
    frame: Frame, me: PeerIdentity, expected: BrokerId, *, certified: frozenset[BrokerId] | None
) -> Hello:
    """Return the answer of a broker that this one connected to.

    Raises:
        HandshakeError: the peer rejected this broker, or this broker rejects the peer.
    """
    hello = _decode(frame)
    if isinstance(hello, Rejected):
        reason = (
            HandshakeRejection(hello.reason)
            if hello.reason in list(HandshakeRejection)
            else HandshakeRejection.NOT_A_PEER
        )
        raise HandshakeError(reason, f"rejected by broker {expected}: {hello.text[:TEXT_MAX]}")
    _check(hello, me, certified)
    if hello.broker_id != expected:
        raise HandshakeError(
            HandshakeRejection.WRONG_BROKER,
            f"broker {hello.broker_id} answers at the address of broker {expected}",
        )
    return hello


def _decode(frame: Frame) -> Hello | Rejected:
    if frame.channel != HANDSHAKE_CHANNEL or frame.attachments:
        raise HandshakeError(HandshakeRejection.NOT_A_PEER, "the first frame is not a handshake")
    try:
        opening = _decode_opening(frame.header)
        if opening.magic != MAGIC:
            raise HandshakeError(HandshakeRejection.NOT_A_PEER, "the other end is not a broker")
        if opening.version != VERSION:
            raise HandshakeError(
                HandshakeRejection.VERSION,
                f"peer protocol {opening.version} is not supported, {VERSION} is: upgrade one "
                "broker after the other, and no more than one release at a time",
            )
        message: Hello | Rejected = _decode_answer(frame.header)
    except UNDECODABLE as error:
        raise HandshakeError(
            HandshakeRejection.NOT_A_PEER, f"cannot decode the handshake: {error}"
        ) from error
    return message


def _check(hello: Hello, me: PeerIdentity, certified: frozenset[BrokerId] | None) -> None:
    """Check what both sides of a connection require of each other."""
    if hello.cluster_id != me.cluster_id:
        raise HandshakeError(
            HandshakeRejection.OTHER_CLUSTER,
            f"broker {hello.broker_id} is of cluster {hello.cluster_id!r}, "
            f"broker {me.broker_id} of {me.cluster_id!r}",
        )
    if hello.broker_id == me.broker_id:
        raise HandshakeError(
            HandshakeRejection.OWN_ID,
            f"both ends are broker {me.broker_id}: give each an id of its own",
        )
    if certified is not None and hello.broker_id not in certified:
        names = ", ".join(f"broker-{each}" for each in sorted(certified)) or "no broker"
        raise HandshakeError(
            HandshakeRejection.CERTIFICATE,
            f"broker {hello.broker_id} shows a certificate that names {names}; "
            f"it must have the subject alternative name broker-{hello.broker_id}",
        )
