"""Messages of a type that was never decoded before are decoded on many threads at once."""

import subprocess
import sys

DECODE_AT_ONCE = """
import sys, threading
import msgspec
from strandline.api.wire import Count, decode

sys.setswitchinterval(1e-6)
for turn in range(40):
    inner = msgspec.defstruct(f"Inner{turn}", [(f"i{n}", Count, 0) for n in range(20)])
    fields = [(f"a{n}", inner | None, None) for n in range(3)]
    fields += [(f"b{n}", dict[str, int], {}) for n in range(30)]
    outer = msgspec.defstruct(f"Outer{turn}", fields)
    body = msgspec.json.encode({"b29": {"x": 1}, "a0": {"i19": 2}, "b3": {"y": 3}})
    gate, found = threading.Barrier(8), []

    def decode_one():
        gate.wait()
        found.append(decode(body, outer, what="message"))

    threads = [threading.Thread(target=decode_one) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [(m.b29, m.a0.i19) for m in found] == [({"x": 1}, 2)] * 8
print("decoded")
"""


def test_threads_that_are_first_to_decode_a_type_do_so_together():
    """msgspec looks at a type when it is first used, and crashes if another thread uses it then."""
    done = subprocess.run(
        [sys.executable, "-c", DECODE_AT_ONCE],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "decoded\n"), done.stderr
