"""Stretches every commit of a table, so that kills at random moments often hit one.

Python runs this at the start of each process whose path has this directory: Spark commits in one.
"""

import os
import random
import time

_link = os.link


def _slow_link(*args, **kwargs):
    time.sleep(random.uniform(0.0, 0.06))
    _link(*args, **kwargs)
    time.sleep(random.uniform(0.0, 0.06))


os.link = _slow_link
