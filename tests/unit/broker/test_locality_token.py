"""The proof of being on one machine: new for each broker, and no broker fails for want of it."""

from strandline.broker.locality_token import write_proof


def test_each_broker_says_something_else(tmp_path):
    """The token of an earlier run is invalid."""
    first, second = write_proof(tmp_path), write_proof(tmp_path)
    assert first.path == second.path
    assert first.text != second.text == second.path.read_text()
    assert second.path.stat().st_mode & 0o777 == 0o600
    second.path.write_text("longer than a token of today" * 9)
    assert write_proof(tmp_path).text == second.path.read_text()


def test_without_a_file_there_is_no_proof(tmp_path):
    """The disk is full, or the like."""
    assert write_proof(tmp_path / "missing").text == ""
