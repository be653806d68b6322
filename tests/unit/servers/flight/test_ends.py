"""Ends that Flight reports include everything that earlier leaders acknowledged."""

import threading
import time

import pyarrow.flight as fl
import pytest

from strandline.api import admin
from strandline.api.local import LOCAL_FILES
from strandline.api.status import from_flight
from strandline.api.tickets import AtTimestamp, ReadRequest, decode_ticket
from strandline.api.wire import decode, encode
from strandline.errors import NotLeaderError, ShuttingDownError, UnavailableError
from strandline.servers.flight import lifecycle

PATIENCE_S = 60
PATH = fl.FlightDescriptor.for_path("s")


def run(client, command, body):
    """The one result of an action."""
    [result] = client.do_action(fl.Action(command.name, encode(body)))
    return result.body.to_pybytes()


def count(client, **request):
    """Return the number of records a read delivers."""
    return client.do_get(fl.Ticket(encode(ReadRequest(stream="s", **request)))).read_all().num_rows


def offset(client, **request):
    answer = run(client, admin.OFFSETS, admin.OffsetsRequest(name="s", **request))
    return decode(answer, admin.Offsets, what="answer").offsets[0]


def described(client, **request):
    answer = run(client, admin.STREAM_INFO, admin.StreamInfoRequest(name="s", **request))
    return decode(answer, admin.StreamInfo, what="answer").partitions[0].high_watermark


def of_flight_info(client):
    """The end three times: of the endpoint, in records, and of the stream."""
    info = client.get_flight_info(PATH)
    stop = decode_ticket(info.endpoints[0].ticket.ticket).stop
    end = decode(info.app_metadata, admin.StreamInfo, what="info").partitions[0].high_watermark
    assert stop == info.total_records == end
    return end


def of_files(client):
    run(client, LOCAL_FILES, ReadRequest(stream="s"))
    return 3


ABOUT_THE_END = {
    "a read to the end": count,
    "a read to latest": lambda c: count(c, start=0, stop="latest"),
    "a read to an offset that is not there yet": lambda c: count(c, start=0, stop=3),
    "a read from there": lambda c: 3 + count(c, start=3),
    "a read by time": lambda c: count(c, stop=AtTimestamp(timestamp_ns=1 << 62)),
    "GetFlightInfo": of_flight_info,
    "offsets at latest": offset,
    "offsets at latest, of leaders": lambda c: offset(c, partitions=[0], of_leader=True),
    "offsets at a time": lambda c: offset(c, at=AtTimestamp(timestamp_ns=1 << 62)),
    "an offset that is not there yet": lambda c: offset(c, at=3),
    "stream_info, of leaders": lambda c: described(c, led=[0]),
    "local files": of_files,
}
NOT_ABOUT_THE_END = {
    "a read between offsets": lambda c: count(c, start=0, stop=1),
    "following": lambda c: (
        c.do_get(fl.Ticket(encode(ReadRequest(stream="s", follow=True)))).read_chunk().data.num_rows
    ),
    "offsets at earliest": lambda c: 1 + offset(c, at="earliest", of_leader=True),
    "following by time": lambda c: (
        c.do_get(fl.Ticket(encode(ReadRequest(stream="s", follow=True, timestamp_from_ns=0))))
        .read_chunk()
        .data.num_rows
    ),
    "stream_info, to find leaders": described,
}


@pytest.fixture
def anew(partition):
    """One record is known to be committed; there are more, but that is known later."""
    partition.store(b"a")
    partition.knows_end = False
    return partition


def waiting(partition):
    """Wait until a caller waits for the partition."""
    deadline = time.monotonic() + PATIENCE_S
    while not partition.waiters:
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.01)


@pytest.mark.parametrize("ask", ABOUT_THE_END.values(), ids=ABOUT_THE_END)
def test_who_asks_for_the_end_waits_until_a_new_leader_knows_it(
    broker, anew, client, ask, monkeypatch
):
    """Whatever call it is part of."""
    monkeypatch.setattr(lifecycle, "END_WAIT_S", PATIENCE_S)

    def learn():
        anew.knows_end = True
        anew.store(b"b", b"c")

    def learn_later():
        waiting(anew)
        broker.call_soon(learn)

    later = threading.Thread(target=learn_later)
    later.start()
    assert ask(client) == 3
    later.join(PATIENCE_S)


def test_a_leader_that_leads_no_more_does_not_answer_for_it(broker, anew, client, monkeypatch):
    """Nor after a wait: it then only knows what a follower knows."""
    monkeypatch.setattr(lifecycle, "END_WAIT_S", PATIENCE_S)

    def lose():
        anew.is_led, anew.knows_end = False, True
        for waiter in anew.waiters:
            waiter.set()

    def lose_later():
        waiting(anew)
        broker.call_soon(lose)

    later = threading.Thread(target=lose_later)
    later.start()
    with pytest.raises(fl.FlightError) as caught:
        offset(client, of_leader=True)
    later.join(PATIENCE_S)
    assert isinstance(from_flight(caught.value, address="here"), NotLeaderError)


@pytest.mark.parametrize("ask", NOT_ABOUT_THE_END.values(), ids=NOT_ABOUT_THE_END)
def test_what_does_not_depend_on_the_end_is_answered_at_once(anew, client, ask):
    """So committed records can be read, and leaders found, at any time."""
    assert ask(client) == 1


def test_a_leader_that_does_not_find_out_says_so(anew, client, monkeypatch):
    """With too few replicas in sync, while there are."""
    monkeypatch.setattr(lifecycle, "END_WAIT_S", 0.01)
    with pytest.raises(fl.FlightError) as caught:
        offset(client)
    error = from_flight(caught.value, address="here")
    assert type(error) is UnavailableError
    assert not anew.waiters


def test_a_copy_is_not_asked_for_what_its_leader_knows(partition, client):
    """A follower reports its own end only if asked for that."""
    partition.store(b"a")
    partition.is_led = False
    assert offset(client) == described(client) == 1
    for ask in (lambda: offset(client, of_leader=True), lambda: described(client, led=[0])):
        with pytest.raises(fl.FlightError) as caught:
            ask()
        assert isinstance(from_flight(caught.value, address="here"), NotLeaderError)


def test_stopping_and_clients_that_go_away_end_the_wait(broker, anew, monkeypatch):
    """And leave nothing behind."""
    monkeypatch.setattr(lifecycle, "END_WAIT_S", PATIENCE_S)
    shared = lifecycle.ServerLifecycle(broker)
    shared.wait_until_caught_up([anew], lambda: True)
    stopper = threading.Thread(target=lambda: (waiting(anew), shared.stopping.set()))
    stopper.start()
    with pytest.raises(ShuttingDownError):
        shared.wait_until_caught_up([anew], lambda: False)
    stopper.join(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while anew.waiters:
        assert time.monotonic() < deadline, "somebody still waits"
        time.sleep(0.01)
