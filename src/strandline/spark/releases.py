"""The releases of Spark that the sources and sinks support.

Rules: light to import. Checked before any newer interface is called: an older Spark would fail with
an internal ``TypeError``.
"""

import pyspark

from strandline.errors import InvalidConfigError

_OLDEST = (4, 2)


def check_spark_version() -> None:
    """Check that this Spark supports Python data sources as needed.

    Raises:
        InvalidConfigError: Spark is too old; the message names its version and a sufficient one.
    """
    numbers = pyspark.__version__.split(".")[:2]
    if tuple(map(int, numbers)) < _OLDEST:
        raise InvalidConfigError(
            f"this is PySpark {pyspark.__version__}, whose Python sources cannot limit what a "
            "micro-batch reads; strandline needs 4.2 or later: pip install 'pyspark>=4.2'"
        )
