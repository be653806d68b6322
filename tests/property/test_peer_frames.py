"""Properties of the peer link's pure parts: any bytes, any chunks, any order of connections."""

from hypothesis import example, given
from hypothesis import strategies as st

from strandline.broker.peers.errors import HandshakeError, PeerFrameError
from strandline.broker.peers.frame import HEAD, Frame, FrameDecoder, encode_frame
from strandline.broker.peers.handshake import PeerIdentity, accept_answer, accept_hello
from strandline.broker.peers.session import Back, Close, Lost, PeerSession
from strandline.types import BrokerId

FRAME_MAX = 2000
RECEIVE = 64
ATTACHMENTS_MAX = 20

frames = st.builds(
    Frame,
    st.integers(0, 255),
    st.binary(max_size=100),
    st.lists(st.binary(max_size=80).map(memoryview), max_size=ATTACHMENTS_MAX).map(tuple),
)
chunk_sizes = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def make_decoder():
    return FrameDecoder(
        frame_bytes_max=FRAME_MAX, attachments_max=ATTACHMENTS_MAX, receive_bytes=RECEIVE
    )


def encoded(frame):
    return b"".join(encode_frame(*frame))


def fed(decoder, data, sizes):
    """Return the frames in ``data`` split into chunks of these sizes in rotation, and the error."""
    found = []
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        turn += 1
        try:
            found += decoder.feed(data[position : position + size])
        except PeerFrameError as error:
            return found, error
        position += size
        assert len(decoder.buffer()) > 0
        assert len(decoder.buffer().obj) <= max(RECEIVE, FRAME_MAX), "memory is bounded"
    return found, None


@given(st.lists(frames, max_size=12), chunk_sizes)
def test_any_cutting_gives_the_same_frames(sent, sizes):
    """However the bytes are split, exactly the sent frames are decoded, in order."""
    decoder = make_decoder()
    found, error = fed(decoder, b"".join(map(encoded, sent)), sizes)
    assert error is None
    assert found == sent
    assert decoder.is_between_frames


heads = st.builds(
    HEAD.pack,
    st.integers(0, 300) | st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.integers(0, 300) | st.integers(0, 2**32 - 1),
    st.integers(0, 30) | st.integers(0, 2**32 - 1),
)


@given(st.lists(st.binary(max_size=200) | frames.map(encoded) | heads, max_size=10), chunk_sizes)
def test_any_bytes_give_frames_or_an_error(pieces, sizes):
    """Noise between frames, forged heads: frames, or a typed error, within bounded memory."""
    data = b"".join(pieces)
    found, error = fed(make_decoder(), data, sizes)
    # What was found was there: encoded again, the frames are how the bytes begin.
    again = b"".join(map(encoded, found))
    assert data.startswith(again)
    if error is None:
        assert len(data) - len(again) <= FRAME_MAX


@given(st.lists(frames, min_size=1, max_size=5), chunk_sizes, st.data())
def test_no_flipped_bit_goes_unnoticed(sent, sizes, data):
    """With one bit wrong the frames before it come out, its own does not."""
    wire = bytearray(b"".join(map(encoded, sent)))
    bit = data.draw(st.integers(0, len(wire) * 8 - 1))
    wire[bit // 8] ^= 1 << (bit % 8)
    found, _ = fed(make_decoder(), bytes(wire), sizes)
    assert len(found) < len(sent)
    assert found == sent[: len(found)]


@given(st.integers(0, 255), st.binary(max_size=300))
@example(0, b"\x80")
def test_any_first_frame_gives_a_hello_or_a_rejection(channel, header):
    """Whatever a stranger says first, the answer is a handshake error at worst."""
    me = PeerIdentity(cluster_id="c", broker_id=BrokerId(1), incarnation="i")
    for judge in (
        lambda: accept_hello(Frame(channel, header), me, {BrokerId(2)}, certified=None),
        lambda: accept_answer(Frame(channel, header), me, BrokerId(2), certified=None),
    ):
        try:
            judge()
        except HandshakeError:
            continue
        raise AssertionError("noise was taken for a handshake")


class Half:
    """A connection."""

    def __init__(self, incarnation):
        self.incarnation = incarnation


steps = st.tuples(
    st.sampled_from(["in", "out", "end"]), st.sampled_from(["i1", "i2"]), st.integers(0, 9)
)


@given(st.lists(steps, max_size=40))
def test_a_session_keeps_its_invariants(story):
    """Back and Lost alternate; up means two open connections of one incarnation; none is leaked."""
    session = PeerSession()
    alive: list[Half] = []  # opened, and neither ended nor told to close
    closing: list[Half] = []  # told to close; their end is still to come
    told = [Lost]
    for kind, incarnation, which in story:
        if kind == "end":
            candidates = alive + closing
            if not candidates:
                continue
            half = candidates[which % len(candidates)]
            (alive if half in alive else closing).remove(half)
            effects = session.closed(half)
        else:
            half = Half(incarnation)
            alive.append(half)
            effects = session.opened(kind, half)
        for effect in effects:
            if isinstance(effect, Close):
                alive.remove(effect.half)
                closing.append(effect.half)
            else:
                assert type(effect) is (Back if told[-1] is Lost else Lost)
                told.append(type(effect))
        assert session.is_up == (told[-1] is Back)
        assert session.is_up == (len(alive) == 2)
        assert len({each.incarnation for each in alive}) <= 1
