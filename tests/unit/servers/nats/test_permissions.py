"""Permissions at nats-server, from rules: subjects of messages, and requests about streams."""

import pytest

from strandline.security.acl import Acls, Rule
from strandline.security.principal import Principal
from strandline.security.quota import Quota
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
    assert {"_INBOX.>", "$SYS.>"} <= set(found.publish_not)


def test_metered_principals_have_no_requests():
    """Neither those whose requests are counted nor those whose reading is."""
    for quota in (Quota(requests_per_s=1), Quota(read_bytes_per_s=1)):
        assert requests(("read", "stream", "S"), quota=quota) == []
    assert requests(("read", "stream", "S"), quota=Quota(publish_bytes_per_s=1)) != []
