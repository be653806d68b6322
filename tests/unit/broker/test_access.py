"""The door of a front end: decisions follow the metadata as it is now."""

from types import SimpleNamespace

import pytest

from strandline.broker.access import Access, read_secret
from strandline.clock import ManualClock
from strandline.config import AuthConfig, BrokerConfig, ClusterConfig
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import (
    AddToken,
    AllocateProducerIds,
    Grant,
    Revoke,
    RevokeToken,
)
from strandline.core.metadata.image import BrokerImage, MetadataImage
from strandline.errors import (
    InvalidConfigError,
    NotAllowedError,
    UnauthenticatedError,
    UnavailableError,
)
from strandline.security.acl import CLUSTER, Resource, Rule
from strandline.security.policy import ClientCredentials, Identity
from strandline.security.principal import Principal
from strandline.security.producer_ids import producer_id_of
from strandline.security.tokens import Token, fingerprint, token_text

SECRET = "0123456789" * 4
TEXT = token_text(bytes(range(36)))
TOKEN = Token(id="00010203", principal="app", sha256=fingerprint(TEXT), created_ns=1)
READ = Rule("app", "read", "stream", "orders")
ORDERS = Resource("stream", "orders")


@pytest.fixture
def broker():
    """A broker's metadata and clock, and nothing more."""
    return SimpleNamespace(image=MetadataImage(), clock=ManualClock(), has_lease=True)


def access(broker, **auth) -> Access:
    """A door that is guarded."""
    values = {"enabled": True, "admin_token": SECRET, **auth}
    return Access(BrokerConfig(auth=AuthConfig(**values)), broker)


def change(broker, *commands) -> None:
    """Change the metadata."""
    for command in commands:
        broker.image = apply(broker.image, command)


def test_where_nothing_is_checked_everybody_may(broker):
    """Without access checks even wrong credentials are accepted."""
    caller = Access(BrokerConfig(), broker).identify(ClientCredentials("nonsense"))
    caller.check(CLUSTER, "admin")
    caller.check_known()
    assert caller.may(ORDERS, "read")


def test_a_producer_id_works_for_the_principal_that_it_was_given_to(broker):
    """The newest owner may not be known everywhere yet: that is worth a retry, the rest is not."""
    change(broker, AddToken(TOKEN), AllocateProducerIds(10, "other"))
    caller = access(broker).identify(ClientCredentials(TEXT))
    other, own = producer_id_of(1, 1), producer_id_of(11, 2)
    with pytest.raises(UnavailableError, match="not known to this broker yet"):
        caller.check_producer(own)
    change(broker, AllocateProducerIds(10, "app"))
    caller.check_producer(own)
    caller.check_producer(producer_id_of(999, 2))
    for number in (0, 7, other, producer_id_of(11, 3)):
        with pytest.raises(NotAllowedError, match="was not given to app"):
            caller.check_producer(number)
    with pytest.raises(NotAllowedError, match="was not given to new"):
        access(broker).check_producer(Principal("new"), own)
    Access(BrokerConfig(), broker).identify(ClientCredentials()).check_producer(other)


def test_a_broker_behind_its_cluster_rejects_no_producer_id_for_certain(broker):
    """The owner may have been decided without this broker."""
    change(broker, AddToken(TOKEN), AllocateProducerIds(10, "other"))
    made = Access(
        BrokerConfig(cluster=ClusterConfig(broker_id=1), auth=AuthConfig(enabled=True)), broker
    )
    with pytest.raises(UnavailableError):
        made.check_producer(Principal("app"), producer_id_of(1, 1))


def test_a_decision_follows_the_metadata(broker):
    """Grants and revocations take effect with the next check."""
    change(broker, AddToken(TOKEN))
    caller = access(broker).identify(ClientCredentials(TEXT))
    with pytest.raises(NotAllowedError):
        caller.check(ORDERS, "read")
    change(broker, Grant((READ,)))
    caller.check(ORDERS, "read")
    assert caller.may(ORDERS, "publish", "read")
    change(broker, Revoke((READ,)))
    with pytest.raises(NotAllowedError):
        caller.check(ORDERS, "read")


def test_a_revoked_token_ends_what_is_in_progress(broker):
    """Its holder is no longer authenticated, whatever the rules say."""
    change(broker, AddToken(TOKEN), Grant((READ,)))
    caller = access(broker).identify(ClientCredentials(TEXT))
    caller.check(ORDERS, "read")
    change(broker, RevokeToken(TOKEN.id))
    with pytest.raises(UnauthenticatedError):
        caller.check(ORDERS, "read")
    with pytest.raises(UnauthenticatedError):
        caller.check_known()


def test_a_broker_that_is_out_of_service_rejects_for_now(broker):
    """It may lack a rule or a token that others have; the administrator's token needs neither."""
    config = BrokerConfig(
        auth=AuthConfig(enabled=True, admin_token=SECRET), cluster=ClusterConfig(broker_id=1)
    )
    door = Access(config, broker)
    for brokers in ({}, {1: BrokerImage(id=1, directory_id="d", incarnation="i")}):
        broker.image = MetadataImage(brokers=brokers)
        with pytest.raises(UnavailableError):
            door.identify(ClientCredentials(TEXT))
        with pytest.raises(UnavailableError):
            door.identify(ClientCredentials(None, "app")).check(ORDERS, "read")
        door.identify(ClientCredentials(SECRET)).check(CLUSTER, "admin")
    live = BrokerImage(id=1, directory_id="d", incarnation="i", is_fenced=False)
    broker.image = MetadataImage(brokers={1: live})
    with pytest.raises(UnauthenticatedError):
        door.identify(ClientCredentials(TEXT))
    with pytest.raises(NotAllowedError):
        door.identify(ClientCredentials(None, "app")).check(ORDERS, "read")


def test_a_lease_that_is_over_ends_what_the_metadata_allows(broker):
    """Only the broker's own settings still allow anything."""
    auth = AuthConfig(enabled=True, admin_token=SECRET, admins=("boss", "tom"))
    door = Access(BrokerConfig(auth=auth, cluster=ClusterConfig(broker_id=1)), broker)
    by_token = Token(id="00010204", principal="tom", sha256=fingerprint("x"), created_ns=1)
    live = BrokerImage(id=1, directory_id="d", incarnation="i", is_fenced=False)
    broker.image = MetadataImage(brokers={1: live})
    change(broker, Grant((READ,)), AddToken(TOKEN), AddToken(by_token))
    app, certified = (
        door.identify(ClientCredentials(TEXT)),
        door.identify(ClientCredentials(None, "app")),
    )
    own = [door.identify(ClientCredentials(SECRET)), door.identify(ClientCredentials(None, "boss"))]
    app.check(ORDERS, "read")
    broker.has_lease = False
    for caller in (app, certified):
        for question in (lambda who=caller: who.check(ORDERS, "read"), caller.check_known):
            with pytest.raises(UnavailableError, match="cut off from its cluster"):
                question()
        assert not caller.may(ORDERS, "read")
    for shown in (ClientCredentials(TEXT), ClientCredentials(None, "app")):
        with pytest.raises(UnavailableError):
            door.identify(shown)
    for caller in own:
        caller.check(ORDERS, "read")
        assert caller.may(CLUSTER, "admin")
    door.identify(ClientCredentials(SECRET)).check(CLUSTER, "admin")
    token_of_admin = Identity(Principal("tom"), by_token.id)
    with pytest.raises(UnavailableError):  # his token may have been revoked
        door.check_lease(token_of_admin)
    with pytest.raises(UnauthenticatedError):
        door.identify(ClientCredentials("wrong" * 9))
    broker.has_lease = True
    app.check(ORDERS, "read")
    assert app.may(ORDERS, "read")


def test_a_broker_alone_needs_no_lease(broker):
    """No other broker can revoke anything."""
    change(broker, Grant((READ,)), AddToken(TOKEN))
    broker.has_lease = False
    access(broker).identify(ClientCredentials(TEXT)).check(ORDERS, "read")


def test_the_policy_is_recreated_only_when_it_may_have_changed(broker):
    """Other changes of the metadata, which are frequent, leave it."""
    door = access(broker)
    before = door.policy
    broker.image = MetadataImage(
        rules=broker.image.rules, tokens=broker.image.tokens, next_log_id=99
    )
    assert door.policy is before
    change(broker, Grant((READ,)))
    assert door.policy is not before


def test_the_administrators_token_comes_from_a_file(broker, tmp_path):
    """White space around it is the editor's, not the token's."""
    file = tmp_path / "token"
    file.write_text(f"  {SECRET}\n")
    door = access(broker, admin_token="", admin_token_file=str(file))
    door.identify(ClientCredentials(SECRET)).check(CLUSTER, "admin")
    with pytest.raises(UnauthenticatedError):
        door.identify(ClientCredentials(f"  {SECRET}\n"))


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, b"x" * 1000])
def test_a_file_without_a_token_stops_the_start(broker, tmp_path, content):
    """A broker that could verify nothing does not start; the message does not show the secret."""
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InvalidConfigError, match="admin_token_file") as caught:
        access(broker, admin_token="", admin_token_file=str(file))
    assert "short" not in str(caught.value).replace(str(file), "")


def test_a_missing_file_stops_the_start(tmp_path):
    """It is named."""
    with pytest.raises(InvalidConfigError, match="cannot read"):
        read_secret(str(tmp_path / "none"), key="auth.admin_token_file")
