"""Error classes: stable codes."""

from strandline.api.status import from_body, to_body
from strandline.errors import CorruptBatchError, UnavailableError, all_error_classes
from strandline.storage.segment_reads import RetiredSegmentError


def test_every_error_has_a_code_of_its_own():
    """Codes tell error classes apart across the wire, so none is shared."""
    codes = [cls.code for cls in all_error_classes()]
    assert len(set(codes)) == len(codes)


def test_a_class_without_a_code_travels_as_its_parent():
    """Storage has such a class; "unavailable" still means the plain one on the other side."""
    error = from_body(to_body(RetiredSegmentError("removed just now")))
    assert type(error) is UnavailableError


def test_corruption_names_file_and_position():
    """A corrupt batch says where it is."""
    error = CorruptBatchError("checksum mismatch", file="a.log", position=64)
    assert "a.log at byte 64" in error.message
