"""The permissions of a nats-server client, derived from the access rules.

Only rules about subjects apply: ``publish subject P`` allows publishing to P, ``read subject P``
allows receiving messages on P. Rules about streams do not apply, because a message goes to every
stream on its subject.

The broker can neither slow down a client of nats-server nor count its messages, because the server
does not identify their sender. So a principal with a quota of bytes or requests may not do here
what the quota limits, and uses the ingest listener or Arrow Flight.

Rules: every client may receive replies. Only the broker may send them, because publishers trust
them. No client may use NATS' own subjects. Pure.
"""

from typing import Final

from strandline.security.acl import Acls
from strandline.security.principal import Principal
from strandline.security.quota import Quota
from strandline.servers.nats.accounts import INBOXES, SYSTEM_SUBJECTS
from strandline.servers.nats.callout import Permissions

OF_NATS: Final = (SYSTEM_SUBJECTS, "$JS.>", "$KV.>", "$O.>", "$MQTT.>")


def permissions_of(principal: Principal, acls: Acls, quota: Quota) -> Permissions:
    """Return the subjects that a principal may publish to and receive."""
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
