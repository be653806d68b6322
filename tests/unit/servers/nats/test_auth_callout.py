"""The auth callout of our nats-server: accepted clients, their permissions, and for how long."""

import base64
from types import SimpleNamespace

import msgspec
import pytest

from strandline.broker.access import Access
from strandline.clock import ManualClock
from strandline.config import AuthConfig, BrokerConfig
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import (
    AddToken,
    Grant,
    RemoveQuota,
    Revoke,
    RevokeToken,
    SetQuota,
)
from strandline.core.metadata.image import MetadataImage
from strandline.security.acl import Rule
from strandline.security.quota import Quota
from strandline.security.tokens import ID_BYTES, SECRET_BYTES, Token, fingerprint, token_text
from strandline.servers.metering import Metering
from strandline.servers.nats.auth_callout import CONNECT_MS, AuthCalloutHandler
from strandline.servers.nats.callout import decode_request
from strandline.servers.nats.nkeys import ACCOUNT, SERVER, USER, KeyPair
from strandline.telemetry import Telemetry

TOKEN = token_text(bytes(range(ID_BYTES + SECRET_BYTES)))
ADMIN = "a" * 40
PUBLISHES = Rule("shop", "publish", "subject", "orders.>")
READS = Rule("shop", "read", "subject", "news.*")


class Place:
    """A door with a server that asks at it, and the metadata behind it."""

    def __init__(self):
        self.clock = ManualClock()
        self.image = MetadataImage()
        self.telemetry = Telemetry()
        self.server, self.issuer = KeyPair(SERVER), KeyPair(ACCOUNT)
        config = BrokerConfig(auth=AuthConfig(enabled=True, admin_token=ADMIN))
        self.door = AuthCalloutHandler(
            Access(config, self),
            Metering(self),
            self.issuer,
            clock=self.clock,
            name_of=lambda pem: pem or None,
        )
        self.door.server_connected(self.server.public)

    def apply(self, *commands):
        for command in commands:
            self.image = apply(self.image, command)

    def data(self, *, connection=7, server=None, certificate="", **shown):
        """A question as nats-server asks it."""
        server = server or self.server
        body = {
            "server_id": {"id": server.public},
            "user_nkey": KeyPair(USER).public,
            "client_info": {"id": connection, "host": "127.0.0.1"},
            "connect_opts": shown,
        }
        if certificate:
            body["client_tls"] = {"verified_chains": [[certificate, "theirs"]]}
        return server.token({"iss": server.public, "nats": body}).encode()

    def ask(self, **shown):
        """The claims of the answer, and of the user in it."""
        answer = self.door.answer(self.data(**shown))
        claims = claims_of(answer.decode())
        user = claims_of(claims["nats"]["jwt"]) if "jwt" in claims["nats"] else None
        return SimpleNamespace(claims=claims, user=user, error=claims["nats"].get("error"))


def claims_of(token):
    payload = token.split(".")[1]
    return msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


@pytest.fixture
def place():
    return Place()


@pytest.fixture
def known(place):
    """A place where the principal shop has a token and two rules."""
    token = Token(id="00010203", principal="shop", sha256=fingerprint(TOKEN), created_ns=0)
    place.apply(AddToken(token), Grant((PUBLISHES, READS)))
    return place


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"auth_token": "wrong"},
        {"auth_token": TOKEN[:-1]},
        {"user": "shop", "pass": ""},
        {"user": "shop", "pass": "wrong"},
        {"auth_token": "wrong", "certificate": "shop"},
    ],
)
def test_who_shows_nothing_that_counts_is_kept_out(known, shown):
    """No token, a wrong one, and a wrong one with a valid certificate are rejected."""
    request = known.ask(**shown)
    assert request.user is None
    assert request.error == "unauthenticated"
    assert known.door.clients == 0


def test_who_is_allowed_nothing_is_kept_out(place):
    """A principal that no rule names does not even get in."""
    token = Token(id="00010203", principal="shop", sha256=fingerprint(TOKEN), created_ns=0)
    place.apply(AddToken(token))
    assert place.ask(auth_token=TOKEN).error == "not_allowed"


@pytest.mark.parametrize(
    "shown", [{"auth_token": TOKEN}, {"user": "any", "pass": TOKEN}, {"certificate": "shop"}]
)
def test_rules_become_permissions(known, shown):
    """A token, a token as password, a certificate: the same principal with the same subjects."""
    nats = known.ask(**shown).user["nats"]
    assert nats["pub"]["allow"] == ["orders.>"]
    assert {"_INBOX.>", "_INBOX_PRIVATE.>"} <= set(nats["pub"]["deny"])
    assert nats["sub"]["allow"] == ["_INBOX.>", "_INBOX_PRIVATE.shop.>", "news.*"]
    assert "$SYS.>" in nats["sub"]["deny"]


def test_no_rule_to_publish_is_no_permission_to(place):
    """An empty list would allow everything to nats-server; it never gets one."""
    place.apply(Grant((Rule("shop", "read", "subject", "news"),)))
    nats = place.ask(certificate="shop").user["nats"]
    assert nats["pub"] == {"deny": [">"]}


def test_an_administrator_may_do_everything_but_pretend_to_be_the_broker(place):
    """The wildcard allows neither replies, which publishers believe, nor the server's subjects."""
    nats = place.ask(auth_token=ADMIN).user["nats"]
    assert nats["pub"]["allow"] == [">"]
    assert {"_INBOX.>", "_INBOX_PRIVATE.>", "$SYS.>"} <= set(nats["pub"]["deny"])


def test_an_answer_is_for_one_connection_of_one_server(known):
    """It has the server's key for the client, the server, the account and the issuer."""
    data = known.data(auth_token=TOKEN)
    request = decode_request(data, known.server.public)
    claims = claims_of(known.door.answer(data).decode())
    user = claims_of(claims["nats"]["jwt"])
    assert claims["sub"] == user["sub"] == request.user_key
    assert claims["aud"] == known.server.public
    assert claims["iss"] == user["iss"] == known.issuer.public
    assert user["aud"] == "STRANDLINE"


@pytest.mark.parametrize("data", [b"", b"eyJ.x.y", b"\x00" * 100])
def test_what_is_no_question_gets_no_answer(known, data):
    """So no client is admitted."""
    assert known.door.answer(data) is None


def test_the_question_of_another_server_gets_no_answer(known):
    """In a cluster each server's questions are for its own broker."""
    assert known.door.answer(known.data(server=KeyPair(SERVER), auth_token=TOKEN)) is None
    assert known.door.clients == 0


def test_who_is_inside_stays_while_rules_say_the_same(known):
    """Changes of other principals' rules, or of streams, close nothing."""
    known.ask(auth_token=TOKEN)
    known.door.connections_to_close()
    known.apply(Grant((Rule("other", "publish", "subject", "x"),)))
    assert known.door.connections_to_close() == []


@pytest.mark.parametrize(
    "command",
    [
        Grant((Rule("shop", "publish", "subject", "more"),)),
        Revoke((PUBLISHES,)),
        RevokeToken("00010203"),
    ],
)
def test_who_is_inside_leaves_when_its_rules_change(known, command):
    """A changed rule or a revoked token closes the connection."""
    known.ask(auth_token=TOKEN, connection=3)
    known.apply(command)
    assert known.door.connections_to_close() == [3]


def test_an_expired_token_ends_the_connection(place):
    """Without any change of the metadata."""
    token = Token(
        id="00010203",
        principal="shop",
        sha256=fingerprint(TOKEN),
        created_ns=0,
        expires_ns=place.clock.now_ns() + 1_000_000_000,
    )
    place.apply(AddToken(token), Grant((PUBLISHES,)))
    place.ask(auth_token=TOKEN, connection=3)
    assert place.door.connections_to_close() == []
    place.clock.advance_ms(2_000)
    assert place.door.connections_to_close() == [3]


def test_who_has_left_is_forgotten(known):
    """Its number is not disconnected later."""
    known.ask(auth_token=TOKEN, connection=3)
    known.door.client_disconnected(3)
    known.apply(Revoke((PUBLISHES,)))
    assert known.door.connections_to_close() == []


def test_when_the_server_was_out_of_sight_everybody_comes_anew(known):
    """Disconnects may have been missed; a restarted server has no old connections."""
    known.ask(auth_token=TOKEN, connection=3)
    assert known.door.server_connected(known.server.public) == [3]
    known.ask(auth_token=TOKEN, connection=4)
    assert known.door.connections_to_close() == [3], "until the server says that it is gone"
    known.door.client_disconnected(3)
    assert known.door.connections_to_close() == []
    assert known.door.server_connected(KeyPair(SERVER).public) == []
    assert known.door.clients == 0


def test_who_was_let_in_and_never_came_is_ended(known):
    """The server gave up without notice, and the slot would stay taken."""
    known.apply(SetQuota("shop", Quota(connections=2)))
    known.ask(auth_token=TOKEN, connection=1)
    known.ask(auth_token=TOKEN, connection=2)
    known.door.client_connected(1)
    assert known.door.connections_to_close() == []
    known.clock.advance_ms(CONNECT_MS)
    assert known.door.connections_to_close() == [2]
    known.door.client_disconnected(2)
    assert known.door.connections_to_close() == []
    assert known.ask(auth_token=TOKEN, connection=3).error is None


def test_one_connection_too_many_is_kept_out(known):
    """By the quota of the principal; when one leaves there is room again."""
    known.apply(SetQuota("shop", Quota(connections=2)))
    assert known.ask(auth_token=TOKEN, connection=1).error is None
    assert known.ask(auth_token=TOKEN, connection=2).error is None
    assert known.ask(auth_token=TOKEN, connection=3).error == "quota_exceeded"
    known.door.client_disconnected(1)
    assert known.ask(auth_token=TOKEN, connection=3).error is None


@pytest.mark.parametrize(
    ("quota", "publishes", "reads"),
    [
        (Quota(publish_bytes_per_s=1000), False, True),
        (Quota(read_bytes_per_s=1000), True, False),
        (Quota(requests_per_s=10), False, False),
        (Quota(connections=5), True, True),
    ],
)
def test_what_a_quota_limits_is_done_elsewhere(known, quota, publishes, reads):
    """nats-server does not name publishers, so a limited principal may not use it."""
    known.ask(auth_token=TOKEN, connection=3)
    known.door.connections_to_close()
    known.apply(SetQuota("shop", quota))
    assert known.door.connections_to_close() == ([] if publishes and reads else [3])
    nats = known.ask(auth_token=TOKEN, connection=4).user["nats"]
    assert (nats["pub"].get("allow") == ["orders.>"]) is publishes
    assert ("news.*" in nats["sub"]["allow"]) is reads
    known.apply(RemoveQuota("shop"))
    assert known.ask(auth_token=TOKEN, connection=5).user["nats"]["pub"]["allow"] == ["orders.>"]
