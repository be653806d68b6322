"""Append a thousand readings to a stream and wait for their acks.

Start a broker first (`strandline serve`), then: python examples/producer.py [host:port]
"""

import json
import sys

import strandline
from strandline.errors import StreamExistsError

server = sys.argv[1] if len(sys.argv) > 1 else "localhost:9293"

with strandline.connect(server) as client:
    try:
        client.create_stream("readings", subject="readings.>", partitions=2)
    except StreamExistsError:
        print("the stream 'readings' exists; appending to it")

    with client.producer("readings") as producer:
        futures = [
            producer.append(
                json.dumps({"sensor": f"s{i % 10}", "value": i * 0.5}),
                subject=f"readings.s{i % 10}",
                key=f"s{i % 10}",
            )
            for i in range(1000)
        ]
    first = futures[0].result()
    print(f"{len(futures)} records are on disk; the first at offset {first} of its partition")
