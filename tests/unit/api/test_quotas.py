"""Quotas over the wire: omitted fields mean no limit."""

import msgspec
import pytest

from strandline.api.quotas import QuotaInfo, SetQuotaRequest
from strandline.security.quota import LIMIT_MAX, UNLIMITED, Quota


@pytest.mark.parametrize("name", Quota.__struct_fields__)
def test_only_what_is_named_is_limited(name):
    """A request that names one limit sets that one."""
    decoded = msgspec.json.decode(
        b'{"principal": "ann", "%b": 5}' % name.encode(), type=SetQuotaRequest
    )
    assert decoded.quota == Quota(**{name: 5})
    listed = msgspec.json.decode(b'{"principal": "ann", "%b": 5}' % name.encode(), type=QuotaInfo)
    assert Quota(**{each: getattr(listed, each) for each in Quota.__struct_fields__}) == Quota(
        **{name: 5}
    )


def test_nothing_named_is_no_limit():
    """The metadata rejects a quota without any limit."""
    assert SetQuotaRequest(principal="ann").quota == UNLIMITED


@pytest.mark.parametrize("limit", [-1, LIMIT_MAX + 1])
@pytest.mark.parametrize("name", Quota.__struct_fields__)
def test_what_is_no_limit_is_rejected(name, limit):
    """Before anything is done."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(
            b'{"principal": "ann", "%b": %d}' % (name.encode(), limit), type=SetQuotaRequest
        )
