"""Row filters of a read, evaluated on the broker.

Rules: vectorised; a subject pattern is matched once per distinct subject, not once per row. A batch
that passes whole is passed on without a copy.
"""

import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.api.tickets import ReadRequest
from strandline.record.schema import TIMESTAMP_TYPE
from strandline.record.subjects import subject_matches

KNOWN_SUBJECTS_MAX = 100_000


class RecordFilter:
    """The filters of one read.

    Args:
        request: the read.
    """

    def __init__(self, request: ReadRequest) -> None:
        self._pattern = request.subject
        self._matches: dict[str, bool] = {}
        self._keys = None if request.keys is None else pa.array(request.keys, pa.binary())
        self._from = _instant(request.timestamp_from_ns)
        self._to = _instant(request.timestamp_to_ns)
        needs = {
            "subject": self._pattern is not None,
            "key": self._keys is not None,
            "timestamp": self._from is not None or self._to is not None,
        }
        self.columns = tuple(name for name, wanted in needs.items() if wanted)
        """The columns that the filters need."""

    @property
    def is_trivial(self) -> bool:
        """Whether every row passes."""
        return not self.columns

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass the filters; if all pass, the batch itself."""
        masks = []
        if self._pattern is not None:
            masks.append(self._subject_mask(batch.column("subject")))
        if self._keys is not None:
            masks.append(pc.is_in(batch.column("key"), value_set=self._keys))
        if self._from is not None:
            masks.append(pc.greater_equal(batch.column("timestamp"), self._from))
        if self._to is not None:
            masks.append(pc.less(batch.column("timestamp"), self._to))
        if not masks:
            return batch
        mask = masks[0]
        for other in masks[1:]:
            mask = pc.and_(mask, other)
        passing = mask.true_count
        if passing == batch.num_rows:
            return batch
        return batch.filter(mask) if passing else batch.slice(0, 0)

    def _subject_mask(self, subjects: pa.DictionaryArray) -> pa.Array:
        """Return a mask: whether each row's subject matches the pattern."""
        if len(self._matches) > KNOWN_SUBJECTS_MAX:
            self._matches.clear()
        found = [self._matches_subject(subject) for subject in subjects.dictionary.to_pylist()]
        if len(found) == 1:
            return pa.repeat(pa.scalar(found[0]), len(subjects))
        return pa.array(found, pa.bool_()).take(subjects.indices)

    def _matches_subject(self, subject: str) -> bool:
        assert self._pattern is not None, "asked only with a pattern"
        known = self._matches.get(subject)
        if known is None:
            known = self._matches[subject] = subject_matches(self._pattern, subject)
        return known


def _instant(timestamp_ns: int | None) -> pa.Scalar | None:
    """Return a time as an Arrow scalar; None stays None."""
    return None if timestamp_ns is None else pa.scalar(timestamp_ns, TIMESTAMP_TYPE)
