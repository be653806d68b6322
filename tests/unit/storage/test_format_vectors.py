"""The hex examples of docs/format.md, besides batches, are what storage writes and reads."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from strandline.storage.disk import Disk
from strandline.storage.journal import Journal
from strandline.storage.journal_file import FILE_HEADER_BYTES, read_entry, read_file_header
from strandline.storage.log_start import format_start, parse_start
from strandline.storage.offset_index import KIND_OFFSETS, IndexFile, SparseIndex, decode_index
from strandline.storage.subject_index import (
    IndexedLog,
    SubjectRows,
    check_subjects,
    encode_subjects,
)

PAGE = (Path(__file__).parents[3] / "docs" / "format.md").read_text()


def vector_after(words):
    """The hex that follows a phrase."""
    block = re.search(r"```hex\n(.*?)```", PAGE[PAGE.index(words) :], flags=re.DOTALL)
    return bytes.fromhex("".join(block.group(1).split()))


class SureDisk(Disk):
    """One whose random bytes are those of the page."""

    def entropy(self, count):
        return b"\x07" * count


def test_a_journal_is_a_header_and_entries(tmp_path):
    """The page's file, written by the journal, and read again."""
    batch = vector_after("**one keyless record**")
    head, entry = (
        vector_after(f"**{what}**") for what in ("the first journal file", "its first entry")
    )
    head = head.ljust(FILE_HEADER_BYTES, b"\0")
    journal = Journal.open(tmp_path / "journal", disk=SureDisk(), file_bytes=8192, after_sequence=0)
    journal.append([(1, batch)])
    data = (tmp_path / "journal" / "000001.journal").read_bytes()
    assert data == (head + entry).ljust(8192, b"\0")
    header = read_file_header(head)
    assert (header.number, header.first_sequence) == (1, 1)
    [(log_id, part)] = read_entry(memoryview(entry), 0, header.nonce).parts(memoryview(entry))
    assert (log_id, bytes(part)) == (1, batch)


def test_an_index_says_where_offsets_are():
    """The index of the page: two entries, and the log that they are about."""
    about = IndexFile(KIND_OFFSETS, 65_536, 700, 1_700_000_000_000_000_000)
    index = SparseIndex()
    index.add(0, 0)
    index.add(300, 32_800)
    vector = vector_after("**an offset index**")
    assert index.encode(about) == vector
    found, decoded = decode_index(vector, KIND_OFFSETS)
    assert found == about
    assert decoded.floor(500) == (300, 32_800)


def test_a_subject_index_lists_offsets_by_subject():
    """The page's index, encoded and looked up."""
    about = IndexedLog(224, 112, 7, 5, 8)
    subjects = pa.array(["a", "b.c", "a"]).dictionary_encode()
    vector = vector_after("**a subject index**")
    assert encode_subjects(about, [SubjectRows(np.array([5, 6, 7]), subjects)]) == vector
    index = check_subjects(vector)
    assert index.about == about
    assert index.offsets(index.find(["a"])).tolist() == [5, 7]


def test_a_log_start_is_a_number_and_its_checksum():
    """As the page shows it."""
    text = re.search(r"`log-start` \|.*`(5000 \w{8})`", PAGE).group(1)
    assert format_start(5000) == f"{text}\n".encode()
    assert parse_start(f"{text}\n".encode()) == 5000
