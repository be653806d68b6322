"""Quotas in the image: set, replaced, removed, and kept in snapshots."""

import pytest

from strandline.core.metadata import quotas
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import RemoveQuota, SetQuota
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import decode_image, decode_json, encode_image, encode_json
from strandline.errors import InvalidRequestError
from strandline.security.quota import Quota

SLOW = Quota(publish_bytes_per_s=1000)
FEW = Quota(connections=2, requests_per_s=5)


def test_a_quota_replaces_the_one_before():
    """A principal has one quota; limits that the new one lacks are removed."""
    image = apply(MetadataImage(), SetQuota("shop", SLOW))
    image = apply(image, SetQuota("shop", FEW))
    assert image.quotas == {"shop": FEW}


def test_a_quota_can_be_removed():
    """Once; there is nothing left to remove then, and the message says where to look."""
    image = apply(MetadataImage(), SetQuota("shop", SLOW))
    image = apply(image, RemoveQuota("shop"))
    assert image.quotas == {}
    with pytest.raises(InvalidRequestError, match="quota list"):
        apply(image, RemoveQuota("shop"))


@pytest.mark.parametrize(
    "command",
    [
        SetQuota("", SLOW),
        SetQuota("__broker", SLOW),
        SetQuota("shop", Quota()),
        SetQuota("shop", Quota(read_bytes_per_s=-5)),
    ],
)
def test_what_limits_nobody_or_nothing_is_rejected(command):
    """No name, a broker's own, no limit, a negative one."""
    with pytest.raises(InvalidRequestError):
        apply(MetadataImage(), command)


def test_there_are_only_so_many_quotas(monkeypatch):
    """Each costs every broker memory; those that are there can be changed and removed."""
    monkeypatch.setattr(quotas, "QUOTAS_MAX", 2)
    image = MetadataImage()
    for name in ("a", "b", "a"):
        image = apply(image, SetQuota(name, SLOW))
    with pytest.raises(InvalidRequestError, match="there are already 2 quotas"):
        apply(image, SetQuota("c", SLOW))
    image = apply(apply(image, SetQuota("b", FEW)), RemoveQuota("a"))
    assert apply(image, SetQuota("c", SLOW)).quotas == {"b": FEW, "c": SLOW}


def test_quotas_outlive_a_restart():
    """Both forms of a snapshot hold them."""
    image = apply(MetadataImage(), SetQuota("shop", FEW))
    assert decode_image(encode_image(image)) == image
    assert decode_json(encode_json(image)) == image
