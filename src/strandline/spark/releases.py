"""Which releases of Spark the sources and sinks work with.

Rules: light to import. Said by name before anything of a newer interface is called: an older Spark
would fail with a ``TypeError`` somewhere within.
"""

import pyspark

from strandline.errors import InvalidConfigError

_OLDEST = (4, 2)


def refuse_old_spark() -> None:
    """Check that this Spark has what Python sources need of it.

    Raises:
        InvalidConfigError: naming its version, and which to install.
    """
    numbers = pyspark.__version__.split(".")[:2]
    if tuple(map(int, numbers)) < _OLDEST:
        raise InvalidConfigError(
            f"this is PySpark {pyspark.__version__}, whose Python sources cannot limit what a "
            "micro-batch reads; strandline needs 4.2 or later: pip install 'pyspark>=4.2'"
        )
