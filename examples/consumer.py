"""Read a stream as Arrow, then follow it record by record.

After examples/producer.py: python examples/consumer.py [host:port]
"""

import itertools
import sys

import strandline

server = sys.argv[1] if len(sys.argv) > 1 else "localhost:9293"

with strandline.connect(server) as client:
    table = client.read("readings").read_all()
    print(
        f"{table.num_rows} records in {table.nbytes} bytes of Arrow; columns {table.column_names}"
    )

    # The broker filters: only matching records are sent.
    one = client.read("readings", subject="readings.s3", columns=["offset", "value"]).read_all()
    print(f"{one.num_rows} of them on readings.s3, the last {one['value'][-1].as_py()!r}")

    subscription = client.subscribe("readings", start="earliest")
    for record in itertools.islice(subscription, 3):
        print(record.partition, record.offset, record.timestamp.isoformat(), record.value)
