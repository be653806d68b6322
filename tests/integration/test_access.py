"""Access control on a real broker: rules and tokens change at run time, also for open calls."""

import threading
import time
from functools import partial

import grpc
import pytest

import strandline
from strandline.errors import (
    InvalidRequestError,
    NotAllowedError,
    UnauthenticatedError,
    UnknownStreamError,
)
from strandline.testing import Server
from tests.kit.waiting import until as wait_until

ADMIN = "an-administrators-token-made-for-this-test"
PATIENCE_S = 60


@pytest.fixture(scope="module")
def server():
    """A broker that checks."""
    with Server(auth={"enabled": True, "admin_token": ADMIN}) as url:
        yield url


@pytest.fixture
def admin(server):
    """Its administrator."""
    with strandline.connect(server, token=ADMIN) as client:
        yield client


@pytest.fixture
def newcomer(server, admin, request):
    """Makes a client of a principal named after the test, with some rules."""
    name, opened = request.node.name, []

    def make(*rules):
        for rule in rules:
            admin.access.grant(name, *rule)
        token = admin.access.create_token(name)
        opened.append(strandline.connect(server, token=token))
        return name, opened[-1]

    yield make
    for client in opened:
        client.close()


def refused(call, *args, **kwargs):
    """Assert that a call is rejected for lack of a rule."""
    try:
        call(*args, **kwargs)
    except NotAllowedError:
        return True
    return False


until = partial(wait_until, seconds=PATIENCE_S)


def test_nobody_gets_in_without_a_token_that_is_known(server, monkeypatch):
    """None, a wrong one, and one that looks like a token; the environment's counts as well."""
    for token in (None, "wrong", "slt_00000000_" + "A" * 43):
        with pytest.raises(UnauthenticatedError):
            strandline.connect(server, token=token)
    monkeypatch.setenv("STRANDLINE_TOKEN", ADMIN)
    strandline.connect(server).close()


def test_an_unknown_stream_tells_nobody_of_others(admin, newcomer):
    """Not even a similar name: the caller may not be allowed to know of it."""
    admin.create_stream("secret-plans")
    _, client = newcomer(("read", "stream", "secret-plan"))
    for call in (client.stream_info, client.read, client.subscribe):
        with pytest.raises(UnknownStreamError) as rejection:
            list(call("secret-plan"))
        assert "secret-plans" not in rejection.value.message
    admin.delete_stream("secret-plans")


@pytest.mark.parametrize("shown", [None, "Bearer wrong", "something else"])
def test_who_is_not_known_keeps_no_call_open(server, shown):
    """A call that has sent only its headers is rejected, and occupies no thread."""
    metadata = [] if shown is None else [("authorization", shown)]
    silent = threading.Event()

    def nothing():
        silent.wait(PATIENCE_S)
        yield b""

    try:
        with grpc.insecure_channel(server.flight) as channel:
            for method in ("DoPut", "DoExchange", "Handshake"):
                call = channel.stream_stream(f"/arrow.flight.protocol.FlightService/{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    list(call(nothing(), metadata=metadata, timeout=30))
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        silent.set()


def test_a_rule_lets_its_principal_do_what_it_says_and_no_more(admin, newcomer):
    """Publishing is not reading, reading is not deleting, and another stream is another stream."""
    admin.create_stream("granted")
    admin.create_stream("other")
    name, client = newcomer(("publish", "stream", "granted"))
    client.append("granted", b"1")
    assert refused(client.append, "other", b"1")
    assert refused(client.read, "granted")
    admin.access.grant(name, "read", "stream", "gr*")
    assert client.read("granted").read_all().num_rows == 1
    assert refused(client.read, "other")
    assert refused(client.delete_stream, "granted")
    assert refused(client.delete_records, "granted", 0)
    assert [stream.name for stream in client.list_streams()] == ["granted"]
    assert [stream.name for stream in admin.list_streams()] == ["granted", "other"]
    for stream in ("granted", "other"):
        admin.delete_stream(stream)


def test_only_who_administers_the_cluster_changes_rules(admin, newcomer):
    """Also not in its own favour; and an administrator can make another."""
    name, client = newcomer(("read", "stream", "*"))
    for call in (
        lambda: client.access.grant(name, "admin", "cluster", "*"),
        lambda: client.access.revoke(name, "read", "stream", "*"),
        lambda: client.access.create_token(name),
        lambda: client.access.revoke_token("00000000"),
        client.access.rules,
        client.access.tokens,
    ):
        assert refused(call)
    admin.access.grant(name, "admin", "cluster", "*")
    assert client.access.rules()


def test_a_stream_records_only_subjects_that_its_maker_may_read(admin, newcomer):
    """A wildcard counts as all that it matches, and partitions as their subjects."""
    _, client = newcomer(("admin", "stream", "mine*"), ("read", "subject", "mine.>"))
    client.create_stream("mine-1", subject="mine.a.*", partitions=2)
    assert refused(client.create_stream, "mine-2", subject=">")
    assert refused(client.create_stream, "mine-2", subject="*.a")
    assert refused(client.create_stream, "mine-2", subject="mine")
    assert refused(client.create_stream, "other", subject="mine.a")
    assert refused(client.create_stream, "mine-2", subject="mine.b", queue_group="theirs")
    client.delete_stream("mine-1")


def test_a_group_is_joined_by_who_may_read_all_its_streams(admin, newcomer):
    """A rule for the group alone shows no record; one for the stream alone no group."""
    admin.create_stream("consumed")
    admin.append("consumed", b"1")
    name, client = newcomer(("group", "group", "readers"), ("read", "stream", "consumed"))
    with client.consumer("readers", "consumed") as consumer:
        until(lambda: bool(consumer.poll(1.0)))
        consumer.commit()
    assert [each.group for each in client.groups.list()] == ["readers"]
    assert refused(client.groups.delete, "readers")
    assert refused(client.groups.info, "writers")
    admin.access.revoke(name, "read", "stream", "consumed")
    assert refused(client.consumer, "readers", "consumed")
    admin.delete_stream("consumed")


def test_revoking_ends_a_read_that_continues(admin, newcomer):
    """A following reader gets the error within moments."""
    admin.create_stream("followed")
    name, client = newcomer(("read", "stream", "followed"))
    outcome, begun = [], threading.Event()

    def follow():
        try:
            for batch in client.read("followed", follow=True):
                begun.set()
                outcome.append(batch.num_rows)
        except NotAllowedError as error:
            outcome.append(error)

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    admin.append("followed", b"1")
    assert begun.wait(PATIENCE_S)
    admin.access.revoke(name, "read", "stream", "followed")
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    assert isinstance(outcome[-1], NotAllowedError)
    admin.delete_stream("followed")


def test_revoking_ends_a_wait_for_records(admin, newcomer):
    """A waiting reader whose rule is revoked does not receive later records."""
    admin.create_stream("waited")
    name, client = newcomer(("read", "stream", "waited"), ("publish", "stream", "other"))
    ended = []

    def wait():
        try:
            ended.append(client.wait_for("waited", {0: 0}, timeout_s=50))
        except NotAllowedError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)  # it waits by now, or is refused at once
    admin.access.revoke(name, "read", "stream", "waited")
    waiting.join(30)
    assert not waiting.is_alive()
    assert isinstance(ended[0], NotAllowedError)


def test_revoking_ends_a_read_that_a_quota_holds_up(admin, newcomer):
    """Undelivered records are not delivered after the rule is revoked."""
    admin.create_stream("metered")
    admin.append("metered", b"x" * 30_000)
    name, client = newcomer(("read", "stream", "metered"), ("publish", "stream", "other"))
    admin.quotas.set(name, read_bytes_per_s=10_000)
    ended = []

    def read():
        try:
            ended.append(client.read("metered").read_all())
        except NotAllowedError as error:
            ended.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    time.sleep(0.5)  # of the two seconds that it is held up
    admin.access.revoke(name, "read", "stream", "metered")
    reading.join(PATIENCE_S)
    admin.quotas.remove(name)
    assert isinstance(ended[0], NotAllowedError)


def test_a_revoked_token_is_worth_nothing_at_once(admin, newcomer):
    """Publishes on an open connection are rejected; the principal's other operations continue."""
    admin.create_stream("published")
    _, client = newcomer(("publish", "stream", "published"))
    _, other = newcomer()
    client.append("published", b"1")
    admin.access.revoke_token(shown_by(client).split("_")[1])
    with pytest.raises(UnauthenticatedError):
        client.append("published", b"2")
    other.append("published", b"3")
    admin.delete_stream("published")


def shown_by(client):
    """The token that a client shows."""
    return client._brokers.connection(client.address)._credentials.token


def test_a_token_expires(admin, newcomer):
    """By the broker's clock."""
    name, _ = newcomer(("read", "stream", "*"))
    token = admin.access.create_token(name, days=1 / 86_400)
    with strandline.connect(admin.address, token=token) as client:
        assert client.list_streams() is not None

        def is_over():
            try:
                client.list_streams()
            except UnauthenticatedError:
                return True
            return False

        until(is_over)


def test_tokens_are_listed_without_what_they_say(server, admin, newcomer):
    """Nothing that is listed, and nothing in the data directory, could be shown to a broker."""
    name, client = newcomer(("read", "stream", "*"))
    secret = shown_by(client)
    [listed] = [token for token in admin.access.tokens() if token.principal == name]
    assert secret.startswith(f"slt_{listed.id}_")
    assert secret not in repr(listed)
    for file in server.data_dir.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes()
            assert ADMIN.encode() not in file.read_bytes()


def test_rules_that_mean_nothing_are_rejected_before_they_are_sent(admin):
    """And revoking a missing rule is an error."""
    with pytest.raises(InvalidRequestError, match="no 'group' of a stream"):
        admin.access.grant("app", "group", "stream", "s")
    with pytest.raises(InvalidRequestError, match="strandline acl list"):
        admin.access.revoke("app", "read", "stream", "never granted")


def test_rules_outlive_a_restart(tmp_path):
    """They are stored before they are acknowledged."""
    options = {"data_dir": tmp_path / "data", "auth": {"enabled": True, "admin_token": ADMIN}}
    with Server(**options) as url, strandline.connect(url, token=ADMIN) as client:
        client.create_stream("kept")
        client.access.grant("app", "read", "stream", "kept")
        token = client.access.create_token("app")
    with Server(**options) as url, strandline.connect(url, token=token) as client:
        assert [stream.name for stream in client.list_streams()] == ["kept"]
