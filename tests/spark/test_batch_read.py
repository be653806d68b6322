"""Batch reads of a stream through Spark."""

import json
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException

from tests.spark.conftest import append

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
