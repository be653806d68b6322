"""The limit of connections over all listeners: strangers make room for each other, not for us."""

from strandline.servers.connections import ConnectionLimit


def admit(limit, *names):
    """Admit connections; which of them were ended for the last one."""
    dropped = []
    for name in names:
        limit.admit(name, lambda name=name: dropped.append(name))
    return dropped


def test_the_oldest_stranger_makes_room():
    """An identified client stays connected, however old its connection is."""
    limit = ConnectionLimit(3)
    assert admit(limit, "known") == []
    limit.note_identified("known")
    assert admit(limit, "a", "b", "c", "d") == ["a", "b"]
    assert limit.count == 3


def test_where_everybody_is_known_one_too_many_is_rejected():
    """Active connections are not closed for it."""
    limit = ConnectionLimit(2)
    assert admit(limit, "a", "b") == []
    limit.note_identified("a")
    limit.note_identified("b")
    assert not limit.admit("c", lambda: None)
    limit.forget("c")
    limit.forget("a")
    assert limit.admit("d", lambda: None)


def test_connections_of_flight_count():
    """They leave less room for the others, and are too many together with them."""
    limit = ConnectionLimit(3)
    admit(limit, "a")
    limit.note_flight(4)
    assert limit.excess == 2
    limit.note_identified("a")
    assert not limit.admit("b", lambda: None)
    limit.forget("b")
    limit.note_flight(1)
    assert limit.excess == 0
    assert limit.admit("b", lambda: None)


def test_a_connection_is_counted_once():
    """Also when it is identified, or ends, twice."""
    limit = ConnectionLimit(3)
    admit(limit, "a")
    for _ in range(2):
        limit.note_identified("a")
    assert limit.count == 1
    for _ in range(2):
        limit.forget("a")
    limit.note_identified("a")
    assert limit.count == 0
