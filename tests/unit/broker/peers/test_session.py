"""The session: when a peer counts as connected, as sequences of connections."""

from dataclasses import dataclass

from strandline.broker.peers.session import Back, Close, Lost, PeerSession


@dataclass(frozen=True)
class Half:
    """A connection by name."""

    name: str
    incarnation: str = "i1"


def up():
    """A session that is up, and its two connections."""
    session, out, in_ = PeerSession(), Half("out"), Half("in")
    session.opened("out", out)
    session.opened("in", in_)
    return session, out, in_


def test_a_peer_is_there_when_both_connections_are():
    """One connection is not enough; the second, in either order, brings the peer back."""
    for first, second in (("out", "in"), ("in", "out")):
        session = PeerSession()
        assert session.opened(first, Half(first)) == []
        assert not session.is_up
        assert session.opened(second, Half(second)) == [Back()]
        assert session.is_up


def test_the_end_of_one_connection_ends_both():
    """The other is closed, so that the peer notices the loss, too."""
    session, out, in_ = up()
    assert session.closed(in_) == [Close(out), Lost()]
    assert not session.is_up
    session, out, in_ = up()
    assert session.closed(out) == [Close(in_), Lost()]


def test_an_end_is_told_once():
    """The end of the second connection is not reported again."""
    session, out, in_ = up()
    session.closed(in_)
    assert session.closed(out) == []


def test_a_peer_that_calls_again_is_lost_and_comes_back():
    """A newer connection replaces the older, and with it the session."""
    session, out, in_ = up()
    assert session.opened("in", Half("newer")) == [Close(out), Close(in_), Lost()]
    assert session.opened("out", Half("called again")) == [Back()]
    assert session.closed(in_) == []
    assert session.is_up


def test_before_the_peer_is_there_connections_stand_alone():
    """No frame flowed, so the end of one says nothing about the other."""
    session, out = PeerSession(), Half("out")
    session.opened("out", out)
    assert session.closed(out) == []
    session.opened("in", Half("in"))
    assert session.opened("in", Half("newer")) == [Close(Half("in"))]
    assert session.opened("out", out) == [Back()]


def test_connections_of_two_incarnations_make_no_session():
    """The peer was restarted: its earlier incarnation's connection is closed."""
    session = PeerSession()
    session.opened("in", Half("in", "i1"))
    assert session.opened("out", Half("out", "i2")) == [Close(Half("in", "i1"))]
    assert session.opened("in", Half("in", "i2")) == [Back()]
    session = PeerSession()
    session.opened("out", Half("out", "i1"))
    assert session.opened("in", Half("in", "i2")) == [Close(Half("out", "i1"))]
    assert not session.is_up
