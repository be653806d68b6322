"""Permissions at nats-server, from rules: subjects of messages, and requests about streams."""

from urllib.parse import unquote

import pytest

from strandline.record.subjects import validate_subject
from strandline.security.acl import Acls, Rule
from strandline.security.principal import Principal
from strandline.security.quota import Quota
from strandline.servers.nats.inboxes import private_inbox
from strandline.servers.nats.permissions import permissions_of

SHOP = Principal("shop")


def permissions(*rules, quota=None, partitions=None):
    acls = Acls([Rule("shop", *rule) for rule in rules])
    return permissions_of(SHOP, acls, quota or Quota(), partitions=partitions)


def requests(*rules, **options):
    found = permissions(*rules, **options).publish
    return sorted(each.removeprefix("$JS.API.") for each in found if each.startswith("$JS"))


def test_a_name_with_dots_is_written_as_clients_do():
    """And a stream of several partitions is all of its names."""
    found = requests(("publish", "stream", "a.b"), partitions={"a.b": 2})
    assert found == ["INFO", "STREAM.INFO.a=b", "STREAM.INFO.a=b:0", "STREAM.INFO.a=b:1"]


def test_creating_needs_to_administer_and_to_record_everything():
    """The subject of a request does not say which subject the stream is to record."""
    admin = ("admin", "stream", "S")
    assert "STREAM.CREATE.S" not in requests(admin)
    assert "STREAM.CREATE.S" not in requests(admin, ("read", "subject", "s.>"))
    assert "STREAM.CREATE.S" in requests(admin, ("read", "subject", ">"))


@pytest.mark.parametrize("pattern", [">", "*.x", "$JS.>", "$JS.API.INFO"])
def test_a_pattern_that_covers_the_api_closes_it(pattern):
    """Subject rules concern messages; the denial of NATS' own subjects takes precedence."""
    found = permissions(("publish", "subject", pattern), ("read", "stream", "S"))
    assert "$JS.>" in found.publish_not
    assert found.publish == (pattern,)


def test_the_administrator_of_the_cluster_may_send_every_request():
    """And still publishes nothing as the system, nor to others' inboxes."""
    found = permissions(("admin", "cluster", "*"))
    assert "$JS.>" not in found.publish_not
    assert ">" in found.publish
    assert {"_INBOX.>", "_INBOX_PRIVATE.>", "$SYS.>"} <= set(found.publish_not)
    assert ">" in found.subscribe


def test_metered_principals_have_no_requests():
    """Neither those whose requests are counted nor those whose reading is."""
    for quota in (Quota(requests_per_s=1), Quota(read_bytes_per_s=1)):
        assert requests(("read", "stream", "S"), quota=quota) == []
    assert requests(("read", "stream", "S"), quota=Quota(publish_bytes_per_s=1)) != []


OWN = ("_INBOX.>", "_INBOX_PRIVATE.shop.>")


@pytest.mark.parametrize(
    "pattern", [">", "*.>", "*.*.*", "*.x.>", "_INBOX_PRIVATE.>", "_INBOX_PRIVATE.admin.*"]
)
def test_a_pattern_that_matches_private_inboxes_allows_no_subscription(pattern):
    """A denial of them would not hide records, which have a subject of their own there."""
    assert permissions(("read", "subject", pattern)).subscribe == OWN


@pytest.mark.parametrize("pattern", ["*", "*.x", "news.>", "a._INBOX_PRIVATE.x", "_INBOX_OTHER.>"])
def test_other_patterns_do(pattern):
    """No private inbox has less than three tokens, or another first one."""
    assert permissions(("read", "subject", pattern)).subscribe == (*OWN, pattern)


@pytest.mark.parametrize("name", ["a", "a.b", "a%2Eb", "a b", "*", ">", "ä", "x" * 200, "." * 200])
def test_an_inbox_is_below_one_token_of_its_own(name):
    """Whatever characters a name has; a subject of others never is."""
    inbox = private_inbox(name)
    validate_subject(f"{inbox}.>", wildcards=True)
    assert inbox.count(".") == 1
    assert unquote(inbox) == f"_INBOX_PRIVATE.{name}"
