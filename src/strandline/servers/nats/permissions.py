"""What a client of our nats-server may do, from the access rules.

Rules about subjects are what counts: ``publish subject P`` lets it publish to P, ``read subject P``
lets it hear what is published to P. Rules about streams say nothing here, because what is published
to a subject goes to every stream that records it.

A client of nats-server cannot be held up by us, nor its messages counted: the server does not say
whose they are. So who has a quota of bytes or requests uses the ingest listener or Arrow Flight
for what the quota limits, and may not do it here.

Rules: everybody may listen for replies; nobody but the broker may send any, as they are what
publishers believe. Subjects of NATS itself are for nobody. Pure.
"""

from typing import Final

from strandline.security.acl import Acls
from strandline.security.principal import Principal
from strandline.security.quota import Quota
from strandline.servers.nats.accounts import INBOXES, SYSTEM_SUBJECTS
from strandline.servers.nats.callout import Permissions

OF_NATS: Final = (SYSTEM_SUBJECTS, "$JS.>", "$KV.>", "$O.>", "$MQTT.>")


def permissions_of(principal: Principal, acls: Acls, quota: Quota) -> Permissions:
    """What a principal may publish and hear."""
    is_metered = bool(quota.publish_bytes_per_s or quota.requests_per_s)
    publish = () if is_metered else acls.patterns(principal, "publish", "subject")
    is_metered = bool(quota.read_bytes_per_s or quota.requests_per_s)
    read = () if is_metered else acls.patterns(principal, "read", "subject")
    return Permissions(
        publish=tuple(sorted(set(publish))),
        publish_not=(INBOXES, *OF_NATS),
        subscribe=(INBOXES, *sorted(set(read))),
        subscribe_not=OF_NATS,
    )
