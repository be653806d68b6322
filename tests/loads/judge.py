"""What a reader of a table has to see, by the records in the log.

Rules: the log is the truth, and what was acknowledged is in it. A snapshot has the rows of exactly
the records below its own offsets; the union with the log's tail those of all records up to the end
at that moment, which is not before what had been acknowledged.
"""

import threading
from collections import Counter
from dataclasses import asdict, dataclass, field

import strandline
from strandline.spark.headers import SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_STREAM
from strandline.spark.tables.open import existing_store
from strandline.spark.tables.store import MissingTableError
from strandline.testing.history import ViolationError

from .kinds import is_bad


@dataclass
class RoundCounts:
    """What a round did, and what was found."""

    kind: str
    number: int
    kills: dict = field(default_factory=dict)
    """Victim: how often."""
    records: int = 0
    rows: int = 0
    """At the end, as they should be."""
    lost: int = 0
    doubled: int = 0
    snapshots: int = 0
    """Checked against their own offsets."""
    disagreeing: int = 0
    unions: int = 0
    """Reads of the table and the log's tail."""
    wrong_unions: int = 0
    commits: int = 0
    merged: int = 0
    """Files that were merged."""
    expired: int = 0
    store_faults: dict = field(default_factory=dict)
    refused: int = 0
    """Lives that ended by themselves with an error that names the cause, such as a lost race."""
    seconds: float = 0.0
    failure: str = ""

    def as_dict(self):
        return asdict(self)


class LogModel:
    """The records of the streams of a round, read as far as they are needed."""

    def __init__(self, client, streams):
        self._client = client
        self._lock = threading.Lock()
        self.records = {(stream, partition): [] for stream in streams for partition in (0, 1)}
        self.acked = dict.fromkeys(self.records, 0)
        """One beyond the last acknowledged offset of each partition."""
        self.values = {}
        """Acknowledged values, by their place and offset."""

    def up_to(self, ends):
        """Return the records of each partition before these offsets; others have none."""
        with self._lock:
            for place, end in ends.items():
                self._read(place, end)
            return {place: found[: ends.get(place, 0)] for place, found in self.records.items()}

    def _read(self, place, end):
        found = self.records[place]
        if len(found) >= end:
            return
        stream, partition = place
        table = self._client.read(
            stream,
            partition=partition,
            start=len(found),
            stop=end,
            columns=["offset", "key", "value"],
        ).read_all()
        rows = table.to_pylist()
        if [row["offset"] for row in rows] != list(range(len(found), end)):
            raise ViolationError(f"{place} does not have the offsets {len(found)} to {end}")
        found += [(row["key"], row["value"]) for row in rows]

    def check_acknowledged(self):
        """Check that everything acknowledged is where its ack says."""
        for (place, offset), value in self.values.items():
            if self.records[place][offset][1] != value:
                raise ViolationError(f"{place} {offset} is not what was acknowledged")


class TableJudge:
    """Compares a table with the log, at any moment.

    Args:
        kind: of the load.
        config: of the pipeline.
        log: the records.
        counts: where to count.
    """

    def __init__(self, kind, config, log, counts):
        self._kind, self._config = kind, config
        self._log, self._counts = log, counts
        self._where = {
            "table_format": config["format"],
            "catalog": config.get("catalog"),
            "storage": config.get("storage"),
        }
        self.committed = {}
        """The offsets of the newest snapshot that was read."""

    def snapshot(self):
        """Check the newest snapshot, if there is one."""
        opened = self._opened()
        if opened is None:
            return
        store, loaded = opened
        ends = {self._place(key): end for key, end in loaded.state.offsets.items()}
        found = self._kind.found(store.scan(loaded), self._config["streams"][0])
        self._counts.snapshots += 1
        self.committed = ends
        self._compare(found, ends, "disagreeing", f"snapshot {loaded.state.sequence}")

    def _opened(self):
        """Return the table and its newest snapshot; None: nothing is committed."""
        try:
            store = existing_store(self._config["into"], **self._where)
        except MissingTableError:
            return None
        loaded = store.load()
        return None if loaded.state is None else (store, loaded)

    def union(self):
        """Check the table with the log's tail; upserts have none."""
        if self._opened() is None:
            return
        before = dict(self._log.acked)
        streams = self._config["streams"]
        view = strandline.table(
            streams if len(streams) > 1 else streams[0],
            server=self._config["server"],
            table=self._config["into"],
            values="json",
            skip_invalid=True,
            **self._where,
        )
        state = view._loaded.state
        ends = {self._place(key): end for key, end in state.offsets.items()}
        for each in view.tail:
            stream, partition = view._options.place(each.partition)
            ends[stream, partition] = each.stop
        found = self._kind.found(view.reader(), streams[0])
        self._counts.unions += 1
        missed = {place: end for place, end in before.items() if ends.get(place, 0) < end}
        if missed:
            self._counts.wrong_unions += 1
            raise ViolationError(f"the union ends at {ends}, acknowledged was {missed}")
        self._compare(found, ends, "wrong_unions", f"the union after commit {state.sequence}")

    def end(self):
        """Check the whole table, and the dead letters; return the live files for each partition."""
        ends = self._log.acked | {
            place: self._log._client.offsets(place[0])[place[1]] for place in self._log.acked
        }
        records = self._log.up_to(ends)
        self._log.check_acknowledged()
        store, loaded = self._opened()
        due = self._kind.rows(records)
        found = self._kind.found(store.scan(loaded), self._config["streams"][0])
        self._counts.records = sum(map(len, records.values()))
        self._counts.rows = due.total()
        self._counts.lost = (due - found).total()
        self._counts.doubled = (found - due).total()
        self._counts.commits = loaded.state.sequence + 1
        committed = {self._place(key): end for key, end in loaded.state.offsets.items()}
        if committed != {place: end for place, end in ends.items() if end}:
            raise ViolationError(f"committed is {committed}, the log ends at {ends}")
        self._compare(found, ends, "disagreeing", "the end")
        self._check_letters(records)
        return len(store.live_files(loaded)) / len(committed)

    def _check_letters(self, records):
        due = Counter(
            (stream, partition, offset)
            for (stream, partition), found in records.items()
            for offset, (_, value) in enumerate(found)
            if is_bad(value)
        )
        name = self._config["dead_letters"]
        letters = self._log._client.read(name, columns=["headers"]).read_all()
        headers = [dict(each) for each in letters.column("headers").to_pylist()]
        found = Counter(
            (each[SOURCE_STREAM].decode(), int(each[SOURCE_PARTITION]), int(each[SOURCE_OFFSET]))
            for each in headers
        )
        if found != due:
            self._counts.lost += (due - found).total()
            self._counts.doubled += (found - due).total()
            raise ViolationError(f"dead letters: missing {due - found}, too many {found - due}")

    def _compare(self, found, ends, count, what):
        due = self._kind.rows(self._log.up_to(ends))
        if found != due:
            setattr(self._counts, count, getattr(self._counts, count) + 1)
            raise ViolationError(
                f"{what} at {ends}: {(due - found).total()} rows are missing, such as "
                f"{list(due - found)[:3]}, and {(found - due).total()} too many, such as "
                f"{list(found - due)[:3]}"
            )

    def _place(self, key):
        """Return the partition of an offset in a table."""
        stream, _, partition = str(key).rpartition("/")
        return (stream or self._config["streams"][0], int(partition))
