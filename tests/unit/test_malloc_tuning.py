"""A reader keeps freed memory, unless the environment sets thresholds."""

import os
import resource
import subprocess
import sys
import textwrap

import pytest

from strandline import malloc_tuning as allocator

CHURN = textwrap.dedent("""
    import resource, sys
    from strandline.malloc_tuning import keep_freed_memory
    print(keep_freed_memory())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        blocks = [bytearray(1 << 20) for _ in range(8)]
        del blocks
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
""")
PAGES_OF_ONE_ROUND = (8 << 20) // resource.getpagesize()


def churn(**environment):
    """Whether thresholds were set, and how many pages allocating again and again faulted."""
    done = subprocess.run(
        [sys.executable, "-c", CHURN],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    was_set, faults = done.stdout.split()
    return was_set == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="about glibc")
def test_memory_that_was_freed_is_used_again():
    """Fifty rounds of the same megabytes fault about as many pages as one."""
    was_set, faults = churn()
    if not was_set:
        pytest.skip("this system's allocator is not glibc's")
    assert faults < 5 * PAGES_OF_ONE_ROUND


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_environment_has_the_last_word(name, monkeypatch):
    """Thresholds set in the environment are not changed."""
    monkeypatch.setenv(name, "")
    allocator.keep_freed_memory.cache_clear()
    try:
        assert not allocator.keep_freed_memory()
    finally:
        allocator.keep_freed_memory.cache_clear()
