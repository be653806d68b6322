"""The check of a crash run: what readers see, compared with the plain function of the input.

Rules: until the end what is seen must be the beginning of what is expected; at the end it must be
all of it, record for record, in order, with the places it was made of. Must not know how Spark or
the pipelines work.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable
from story import INPUTS, KEYS, LOADS, NEW_KEYS

from strandline.spark.headers import SOURCE_HEADERS
from strandline.spark.pipelines.sources import source_of
from strandline.spark.table import read_table
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.iceberg import open_catalog
from strandline.spark.tables.open import existing_store


class Sequence(NamedTuple):
    """Records that were found in this order, and those that should be."""

    found: list
    expected: list
    place: str


class Fact(NamedTuple):
    """Something else that has to be so."""

    is_so: bool
    place: str


@dataclass
class Verdict:
    """The result for a pipeline's output."""

    expected: int = 0
    found: int = 0
    lost: int = 0
    duplicated: int = 0
    """Too often there, or not expected at all."""
    misplaced: int = 0
    """Out of order, though each is there once; or with something about it that is not so."""
    first: str = ""
    """What was wrong first."""

    @property
    def is_clean(self):
        """Whether nothing is wrong."""
        return not (self.lost or self.duplicated or self.misplaced)

    def check(self, fact):
        """Note a fact that is not so."""
        if not fact.is_so:
            self.misplaced += 1
            self.first = self.first or f"not so: {fact.place}"

    def compare(self, sequence, *, is_end):
        """Compare a sequence with the expected one, or with a prefix of it."""
        found, expected, place = sequence
        wanted = expected if is_end else expected[: len(found)]
        self.expected += len(expected)
        self.found += len(found)
        if found == wanted:
            return
        lost, surplus = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        self.lost += lost.total()
        self.duplicated += surplus.total()
        pairs = enumerate(zip(found, wanted, strict=False))
        different = [(i, a, b) for i, (a, b) in pairs if a != b]
        if not lost and not surplus:
            self.misplaced += len(different)
        self.first = self.first or (
            f"{place}: {len(found)} where {len(wanted)} belong; lost {list(lost)[:5]}, too often "
            f"{list(surplus)[:5]}, first difference (place, found, due) {different[:1]}"
        )


class Judge:
    """Looks at everything that a story's pipelines made.

    Args:
        story: its streams, tables, and how much was appended.
    """

    def __init__(self, story):
        self.story = story

    def judge(self, kind, *, is_end):
        """The verdict on a pipeline; on the input itself, if ``kind`` is ``input``."""
        verdict = Verdict()
        looks = [self._table if kind in LOADS else getattr(self, f"_{kind}")]
        looks += [self._positions] * (is_end and kind in LOADS)
        for each in (each for look in looks for each in look(kind)):
            if isinstance(each, Fact):
                verdict.check(each)
            else:
                verdict.compare(each, is_end=is_end)
        return verdict

    def rows(self, stream, partition=0):
        """Number, key, source and headers of each record of a partition, in order."""
        table = self.story.client.read(stream, partition=partition).read_all()
        found = []
        for row in table.select(["value", "key", "headers"]).to_pylist():
            headers = dict(row["headers"] or ())
            found.append((json.loads(row["value"]), row["key"], source_of(headers), headers))
        return found

    def orders(self, partition):
        """Numbers of a partition of ``orders``."""
        return [n for n in range(self.story.total) if n % 2 == partition]

    # What there is to compare of each kind

    def _input(self, _):
        for partition in range(INPUTS["orders"]):
            found = [value["n"] for value, *_ in self.rows("orders", partition)]
            yield Sequence(found, self.orders(partition), f"orders/{partition}")
        replicas = self.story.brokers.replication.get("replicas", 1)
        for name in INPUTS | self.story.outputs:
            config = self.story.client.stream_info(name).config
            yield Fact(config.replicas == replicas, f"{name} has {replicas} copies")

    def _copy(self, _):
        for partition in (0, 1):
            found = [(value["n"], place) for value, _, place, _ in self.rows("copy", partition)]
            expected = [(n, ("orders", n % 2, n // 2)) for n in self.orders(partition)]
            yield Sequence(found, expected, f"copy/{partition}")

    def _transform(self, _):
        for partition, stream in enumerate(("even", "odd")):
            found = [value["n"] for value, *_ in self.rows(stream)]
            expected = [n for n in self.orders(partition) if n % 5 for _ in (1, 2)]
            yield Sequence(found, expected, stream)

    def _aggregate(self, _):
        """Every change of a state: it holds all records up to its offsets, and more than before."""
        newest = {}
        for partition in (0, 1):
            for value, key, *_ in self.rows("totals", partition):
                state = (value["values"]["n"], value["values"]["total"])
                due = self._state(key, value["offsets"])
                yield Fact(state == due, f"state {state} of {key} is {due}")
                yield Fact(newest.get(key, (0, 0)) < state, f"state {state} of {key} grows")
                newest[key] = state
        # As many records as the states hold, key by key; at the end all.
        ends = {str(p): len(self.orders(p)) - 1 for p in (0, 1)}
        for number in range(KEYS):
            key = b"k%d" % number
            held, due = newest.get(key, (0, 0))[0], self._state(key, ends)[0]
            yield Sequence([number] * held, [number] * due, f"records of {key}")

    def _state(self, key, offsets):
        """Count and sum of a key's records up to the offsets, both included."""
        mine = []
        for partition in (0, 1):
            of_key = (n for n in range(partition, 2 * KEYS, 2) if b"k%d" % (n % KEYS) == key)
            first = next(of_key)
            last = 2 * offsets.get(str(partition), -1) + partition
            mine += range(first, min(last + 1, self.story.total), 2 * KEYS)
        return len(mine), sum(mine)

    def _merge(self, _):
        rows = [(value["n"], place) for value, _, place, _ in self.rows("merged")]
        every = range(self.story.total)
        of_extra = [(n, ("extra", 0, n)) for n in every]
        mine = [row for row in rows if row[1][0] == "extra"]
        yield Sequence(mine, of_extra, "merged from extra")
        for partition in (0, 1):
            mine = [row for row in rows if row[1][:2] == ("orders", partition)]
            due = [(n, ("orders", n % 2, n // 2)) for n in self.orders(partition)]
            yield Sequence(mine, due, f"merged from orders/{partition}")

    def _repartition(self, _):
        """By new key and source partition, in order; a key is in one partition alone."""
        homes, found = {}, {}
        for partition in (0, 1):
            for value, key, place, _ in self.rows("keyed", partition):
                homes.setdefault(key, set()).add(partition)
                found.setdefault((key, place[1]), []).append((value["n"], place))
        yield Fact(all(len(home) == 1 for home in homes.values()), f"one partition each: {homes}")
        for number in range(NEW_KEYS):
            for source in (0, 1):
                due = [n for n in self.orders(source) if n % NEW_KEYS == number]
                expected = [(n, ("orders", source, n // 2)) for n in due]
                mine = found.get((b"%d" % number, source), [])
                yield Sequence(mine, expected, f"key {number} from orders/{source}")

    def _clean(self, _):
        for partition in (0, 1):
            rows = self.rows("pristine", partition)
            found = [value["n"] for value, *_ in rows]
            yield Sequence(found, self.orders(partition), f"pristine/{partition}")
            marked = [headers for *_, headers in rows if set(headers) & set(SOURCE_HEADERS)]
            yield Fact(not marked, "no record has headers of pipelines")

    def _table(self, kind):
        """Rows by their places."""
        rows = self._rows_of_table(kind)
        for partition in (0, 1):
            mine = sorted((offset, n) for p, offset, n in rows if p == partition)
            expected = [(n // 2, n) for n in self.orders(partition)]
            yield Sequence(mine, expected, f"{kind} of orders/{partition}")

    def _rows_of_table(self, kind):
        """Partition, offset and number of each row that is committed."""
        path = self.story.table_path(kind)
        if kind == "iceberg":
            catalog = open_catalog(self.story.catalog)
            there = catalog.table_exists(path)
            table = catalog.load_table(path).scan().to_arrow() if there else None
        elif kind == "delta":
            there = DeltaTable.is_deltatable(path)
            table = DeltaTable(path).to_pyarrow_table() if there else None
        else:
            there = Path(path).exists() and TableFiles(path).sequences()
            table = read_table(path).to_table() if there else None
        if table is None:
            return []
        columns = (table.column(name).to_pylist() for name in ("_partition", "_offset", "n"))
        return list(zip(*columns, strict=True))

    def _positions(self, kind):
        """Return the offsets that a table has committed; only while nobody writes."""
        path, catalog = self.story.table_path(kind), self.story.catalog
        state = existing_store(path, table_format=kind, catalog=catalog).load().state
        due = {p: len(self.orders(p)) for p in (0, 1)}
        found = state.offsets if state else {}
        yield Fact(found == due, f"{kind} has committed {found}, all of {due}")
