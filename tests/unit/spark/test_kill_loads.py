"""Slices of ``make kill-loads``: a load, the broker and the store's answers broken at random."""

import pytest
from deltalake import DeltaTable, write_deltalake

import strandline
from strandline.spark.connection import forget_client
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.testing import ProcessServer, Server
from strandline.testing.history import ViolationError
from tests.loads.judge import LogModel, RoundCounts, TableJudge
from tests.loads.kill_round import KillRound
from tests.loads.kinds import LoadKind

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "kind",
    [
        LoadKind("parquet", "several"),
        LoadKind("delta", "append", in_store=True),
        LoadKind("iceberg", "debezium"),
    ],
    ids=lambda kind: f"{kind.format}-{kind.mode}",
)
def test_killed_loads_give_the_function_of_their_log(kind, tmp_path):
    """Whoever dies, with merges and expiry: in every snapshot offsets and data agree, and so does
    the union with the log; at the end each record and each dead letter is there once.
    """
    with ProcessServer() as broker:
        found = KillRound(
            1, seed=3, kills=4, broker=broker, directory=tmp_path / "round", kind=kind
        ).run()
    assert not found.failure
    assert sum(found.kills.values()) >= 3
    assert found.snapshots > 3
    assert found.records > 50
    assert found.merged or kind.is_upsert, "nothing was merged"


def test_the_judge_finds_what_is_wrong(tmp_path):
    """A row that is gone, and one that is there twice, at the end and in a snapshot."""
    kind = LoadKind("delta")
    with Server() as url, strandline.connect(url) as client:
        [stream] = kind.streams("j")
        client.create_stream(stream, partitions=2)
        client.create_stream("bad-j")
        config = kind.config(tmp_path, label="j", server=str(url), s3=None, age_ms=0)
        for value in (b'{"id": 1, "name": "a"}', b"oops 2", b'{"id": 3, "name": "c"}'):
            client.append(stream, value, partition=1)
        run_local(decode_pipeline(config))
        counts = RoundCounts(kind.name, 0)
        judge = TableJudge(kind, config, LogModel(client, [stream]), counts)
        judge.snapshot()
        judge.union()
        judge.end()
        rows = DeltaTable(config["into"]).to_pyarrow_table()
        DeltaTable(config["into"]).delete("id = 3")
        with pytest.raises(ViolationError, match="1 rows are missing"):
            judge.snapshot()
        with pytest.raises(ViolationError, match="1 rows are missing"):
            judge.end()
        write_deltalake(config["into"], rows, mode="append")
        with pytest.raises(ViolationError, match="1 too many"):
            judge.snapshot()
        with pytest.raises(ViolationError, match="1 too many"):
            judge.union()
        forget_client(str(url))
    assert (counts.disagreeing, counts.wrong_unions, counts.lost, counts.doubled) == (3, 1, 1, 0)
