"""Spark's own ``from_json`` on odd JSON, compared with a load."""

from itertools import groupby

import pytest
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it

from tests.unit.spark.json_cases import DEAD, FIELDS, WHOLE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
CORRUPT = {"columnNameOfCorruptRecord": "_corrupt"}


def from_json(spark, values, kind):
    """For each value the text of its field ``a``, or that Spark calls it corrupt."""
    frame = spark.createDataFrame(list(enumerate(values)), "i INT, v STRING")
    parsed = F.from_json("v", f"a {kind}, _corrupt STRING", CORRUPT).alias("j")
    shown = "hex(j.a)" if kind == "BINARY" else "CAST(j.a AS STRING)"
    rows = frame.select("i", parsed).orderBy("i").selectExpr(f"{shown} AS a", "j._corrupt AS c")
    return [DEAD if row.c is not None else row.a for row in rows.collect()]


def test_the_table_says_what_spark_does(spark):
    """Where the docs say that a load differs from Spark, it is still Spark that they describe."""
    for kind, cases in groupby(FIELDS, key=lambda case: case[0]):
        fields = list(cases)
        values = [f'{{"a":{text}}}' for _, text, _, _ in fields]
        expected = [(text, sparks) for _, text, _, sparks in fields]
        texts = [text for text, _ in expected]
        found = from_json(spark, values, kind)
        assert list(zip(texts, found, strict=True)) == expected, kind
    found = from_json(spark, [text for text, _, _ in WHOLE], "INT")
    assert found == [str(sparks) if isinstance(sparks, int) else sparks for _, _, sparks in WHOLE]
