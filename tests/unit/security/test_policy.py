"""The policy: authentication, and permissions of principals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import NotAllowedError, UnauthenticatedError
from strandline.security.acl import CLUSTER, Resource, Rule
from strandline.security.policy import ClientCredentials, Identity, Policy, Settings
from strandline.security.principal import ANONYMOUS, BOOTSTRAP_ADMIN, BROKERS, Principal
from strandline.security.tokens import Token, fingerprint, token_text

TEXT = token_text(bytes(range(36)))
APP = Principal("app")
ORDERS = Resource("stream", "orders")
ADMIN_TEXT = "an administrator's token of some length"


def token(**fields) -> Token:
    """The token of ``TEXT``, of the principal ``app``."""
    values = {"id": "00010203", "principal": "app", "sha256": fingerprint(TEXT), "created_ns": 1}
    return Token(**{**values, **fields})


def policy(*rules: Rule, tokens: tuple[Token, ...] = (token(),), **settings) -> Policy:
    """A policy of some rules and tokens."""
    return Policy(rules, {each.id: each for each in tokens}, Settings(**settings))


def test_a_token_stands_for_its_principal():
    """The stored hash is enough to recognize it."""
    assert policy().identify(ClientCredentials(TEXT), 10) == Identity(APP, "00010203")


@pytest.mark.parametrize(
    "shown",
    [
        ClientCredentials(),
        ClientCredentials(""),
        ClientCredentials(TEXT[:-1]),
        ClientCredentials(TEXT + "A"),
        ClientCredentials("slt_00010203_"),
        ClientCredentials("x" * 10_000),
        ClientCredentials("\ud800"),
        ClientCredentials(token_text(bytes(range(4)) + bytes(32))),
        ClientCredentials(None, ""),
        ClientCredentials(None, "__admin"),
        ClientCredentials("wrong", "alice"),
    ],
    ids=range(11),
)
def test_what_is_not_verified_is_nobody(shown):
    """Nothing, something like a token, a name of the broker's own; a certificate helps none."""
    with pytest.raises(UnauthenticatedError):
        policy(Rule("alice", "read", "stream", "*")).identify(shown, 10)


@given(st.text() | st.just(TEXT), st.none() | st.text())
def test_nothing_that_is_made_up_gets_in(text, certificate):
    """For any token but the one there is, the answer is no, never a crash."""
    try:
        identity = policy().identify(ClientCredentials(text, certificate), 10)
    except UnauthenticatedError:
        return
    assert text == TEXT
    assert identity.principal == APP


def test_without_a_hash_in_the_settings_no_token_is_the_administrators():
    """An administrator's token that was not configured cannot be guessed by leaving it out."""
    for text in ("", "admin", ADMIN_TEXT):
        with pytest.raises(UnauthenticatedError):
            policy(admin_sha256=b"").identify(ClientCredentials(text), 10)


def test_the_administrators_token_may_do_everything():
    """At first, nobody else is allowed anything."""
    made = policy(admin_sha256=fingerprint(ADMIN_TEXT))
    identity = made.identify(ClientCredentials(ADMIN_TEXT), 10)
    assert identity == Identity(BOOTSTRAP_ADMIN)
    made.check(identity.principal, ("admin",), CLUSTER)
    made.check_current(identity, 10**30)


def test_a_certificate_stands_for_its_name():
    """TLS has verified it; rules name its principal."""
    identity = policy().identify(ClientCredentials(None, "alice"), 10)
    assert identity == Identity(Principal("alice"))


def test_an_expired_token_is_worth_nothing():
    """From that nanosecond on, also for authenticated callers."""
    made = policy(tokens=(token(expires_ns=100),))
    identity = made.identify(ClientCredentials(TEXT), 99)
    made.check_current(identity, 99)
    with pytest.raises(UnauthenticatedError):
        made.identify(ClientCredentials(TEXT), 100)
    with pytest.raises(UnauthenticatedError):
        made.check_current(identity, 100)


def test_a_revoked_token_ends_who_came_with_it():
    """Even if the id belongs to another token now."""
    identity = policy().identify(ClientCredentials(TEXT), 10)
    for later in (policy(tokens=()), policy(tokens=(token(principal="other"),))):
        with pytest.raises(UnauthenticatedError):
            later.check_current(identity, 10)


def test_what_is_missing_is_said_as_the_command_that_grants_it():
    """A denial names the command for an administrator."""
    with pytest.raises(NotAllowedError, match="strandline acl grant 'app' read stream 'orders'"):
        policy().check(APP, ("read", "publish"), ORDERS)
    with pytest.raises(NotAllowedError, match="'app' admin cluster '\\*'"):
        policy().check(APP, ("admin",), CLUSTER)


def test_one_of_several_operations_is_enough():
    """Finding a leader needs to read, publish or administer."""
    made = policy(Rule("app", "publish", "stream", "orders"))
    made.check(APP, ("read", "publish", "admin"), ORDERS)
    with pytest.raises(NotAllowedError):
        made.check(APP, ("read", "admin"), ORDERS)


def test_principals_of_the_settings_may_do_everything():
    """An administrator by certificate needs no rule in the metadata."""
    made = policy(admins=frozenset({"alice"}))
    assert made.allows(Principal("alice"), "admin", CLUSTER)
    assert not made.allows(APP, "admin", CLUSTER)


def test_brokers_hand_on_publishes_and_do_nothing_else():
    """Their token is no way around the rules for anything but that."""
    made = policy()
    assert made.allows(BROKERS, "publish", ORDERS)
    assert not made.allows(BROKERS, "read", ORDERS)
    assert not made.allows(BROKERS, "admin", CLUSTER)


def test_who_is_named_by_no_rule_is_allowed_nothing():
    """Authentication alone allows nothing; the anonymous principal is never allowed anything."""
    with pytest.raises(NotAllowedError):
        policy().check_known(APP)
    policy(Rule("app", "read", "stream", "x")).check_known(APP)
    with pytest.raises(NotAllowedError):
        policy().check_known(ANONYMOUS)
