"""Any manifest is decoded as it was encoded, and any change of one is refused by name."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.backup.manifest import (
    BackupFile,
    BackupManifest,
    PartitionBackup,
    decode_manifest,
    encode_manifest,
    file_name,
    parse_file_name,
)
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import encode_json
from strandline.errors import CorruptBatchError, StrandlineError

OFFSETS = st.integers(min_value=0, max_value=1 << 62)


@st.composite
def partitions(draw, log_id):
    """A partition whose files follow one another, some records of the first deleted."""
    bounds = sorted(draw(st.sets(OFFSETS, max_size=4)))
    pairs = list(itertools.pairwise(bounds))
    files = tuple(
        BackupFile(
            name=file_name(log_id, start, end, number=draw(st.integers(1, 999_999))),
            start=start,
            end=end,
            size=draw(OFFSETS),
            sha256=draw(st.text("0123456789abcdef", min_size=64, max_size=64)),
        )
        for start, end in pairs
    )
    first = pairs[0] if pairs else (draw(OFFSETS),) * 2
    start = draw(st.integers(*first))
    return PartitionBackup(
        stream=draw(st.text(min_size=1, max_size=5)),
        partition=draw(st.integers(0, 9)),
        log_id=log_id,
        created_ns=draw(OFFSETS),
        log_start_offset=start,
        end=pairs[-1][1] if pairs else start,
        files=files,
    )


@st.composite
def manifests(draw):
    """A manifest of a few partitions."""
    return BackupManifest(
        number=draw(st.integers(1, 999_999)),
        cluster=draw(st.text(max_size=5)),
        strandline="0.1.0",
        started_ns=draw(OFFSETS),
        finished_ns=draw(OFFSETS),
        metadata=msgspec.Raw(encode_json(MetadataImage())),
        partitions=tuple(draw(partitions(log_id)) for log_id in range(draw(st.integers(0, 3)))),
    )


@given(manifests())
def test_a_manifest_comes_back(manifest):
    """With all of its files, by name, and their sizes."""
    found = decode_manifest(encode_manifest(manifest), file="m")
    assert found.partitions == manifest.partitions
    assert found.image == MetadataImage()
    assert found.size == manifest.size == sum(each.size for each in found.files.values())
    for name, file in found.files.items():
        assert parse_file_name(name)[:2] == (file.start, file.end)


@given(manifests(), st.data())
def test_a_changed_byte_is_refused(manifest, data):
    """Wherever it is, the error names the manifest."""
    encoded = bytearray(encode_manifest(manifest))
    position = data.draw(st.integers(0, len(encoded) - 2))  # the last is the line's end
    encoded[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StrandlineError, match=r"manifest\.json is damaged"):
        decode_manifest(bytes(encoded), file="manifest.json")


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "it is empty"), (b"\n", "it is empty"), (b"{}\n", "its first line is not the checksum")],
)
def test_a_manifest_without_a_checksum_is_refused(data, why):
    """The error says what is wrong with it, and what to do."""
    with pytest.raises(CorruptBatchError, match=f"m is damaged: {why}.*; take a new backup"):
        decode_manifest(data, file="m")


@given(manifests(), st.data())
def test_a_missing_file_is_noticed(manifest, data):
    """A manifest that lacks a file in the middle, or the last one, is no whole backup."""
    long = [each for each in manifest.partitions if len(each.files) > 1]
    if not long:
        return
    chosen = data.draw(st.sampled_from(long))
    gone = data.draw(st.integers(1, len(chosen.files) - 1))
    short = msgspec.structs.replace(chosen, files=chosen.files[:gone] + chosen.files[gone + 1 :])
    partitions = tuple(short if each is chosen else each for each in manifest.partitions)
    encoded = encode_manifest(msgspec.structs.replace(manifest, partitions=partitions))
    with pytest.raises(CorruptBatchError, match="damaged"):
        decode_manifest(encoded, file="manifest.json")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data):
    """Never with another error than ours."""
    with pytest.raises(StrandlineError):
        decode_manifest(data, file="manifest.json")
