"""Views of streams, so that ``SELECT ... FROM strandline.orders`` works in Spark's SQL.

    from strandline.spark.views import register_views
    register_views(spark, server="localhost:9293")

Rules: a catalog (``spark.sql.catalog.strandline``) would have to be a Java class, so these are
global temporary views, in Spark's database for such views: it is called ``strandline`` in sessions
of ``spark_session``. Only SQL is used, so this works with classic sessions and Spark Connect.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from strandline.spark.connection import client_of, matching
from strandline.spark.options import STREAM_FORMAT, parse_read_options


def register_views(
    spark: SparkSession,
    server: str = "127.0.0.1:9293",
    *,
    pattern: str = "*",
    options: Mapping[str, str] | None = None,
) -> list[str]:
    """Register a view of each stream, and return the views' names, as SQL needs them.

    A view has the records up to the moment of its first use, like every DataFrame of a stream; call
    this again for newer records and new streams.

    Args:
        spark: the session; other sessions of its application see the views, too.
        server: the broker's Flight address, as drivers and executors reach it.
        pattern: a glob that the names of the streams match.
        options: further options of ``format("strandline")``, such as ``startingTimestamp``.

    Raises:
        InvalidConfigError: an option is unknown or invalid.
        UnavailableError: the broker could not be reached in time.
    """
    database = spark.conf.get("spark.sql.globalTempDatabase")
    names = [each.name for each in client_of(server).list_streams()]
    registered = []
    for name in sorted(matching(names, pattern)):
        given = {"server": server, "stream": name, **(options or {})}
        parse_read_options(given, streaming=False)  # raises without Java's stack trace
        listed = ", ".join(f"{_name(key)} {_text(value)}" for key, value in given.items())
        spark.sql(
            f"CREATE OR REPLACE GLOBAL TEMPORARY VIEW {_name(name)} USING {STREAM_FORMAT} "
            f"OPTIONS ({listed})"
        )
        registered.append(f"{_name(database)}.{_name(name)}")
    return registered


def _name(text: Any) -> str:
    """Return a name in SQL, quoted if it has to be."""
    plain = str(text)
    return plain if plain.isidentifier() and plain.isascii() else f"`{plain.replace('`', '``')}`"


def _text(text: str) -> str:
    """Return a text in SQL."""
    escaped = str(text).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
