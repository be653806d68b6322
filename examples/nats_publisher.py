"""Publish with stock nats-py so that each record is stored once, also if acks or leaders are lost.

A publish that is not acknowledged is sent again with the same Nats-Msg-Id. If the first one was
stored, the leader recognizes the id and acknowledges it again. Sending one record after the other
keeps their order.

    python examples/nats_publisher.py SUBJECT COUNT nats://host:port [nats://host:port …]
"""

import asyncio
import sys
import uuid

import nats
from nats.errors import Error
from nats.js import JetStreamContext

PATIENCE_S = 60


async def publish(stream: JetStreamContext, subject: str, payload: bytes) -> int:
    """Publish until the record is acknowledged; return its sequence."""
    message_id = uuid.uuid4().hex
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                ack = await stream.publish(
                    subject, payload, timeout=1, headers={"Nats-Msg-Id": message_id}
                )
            except (Error, OSError) as error:
                print(f"not acknowledged, sent again: {error!r}", file=sys.stderr)
                await asyncio.sleep(0.1)
            else:
                return ack.seq


async def main(subject: str, count: int, servers: list[str]) -> None:
    """Publish ``count`` numbered records."""
    client = await nats.connect(
        servers, max_reconnect_attempts=-1, reconnect_time_wait=0.1, connect_timeout=1
    )
    stream = client.jetstream()
    for number in range(count):
        sequence = await publish(stream, subject, b"%d" % number)
        print(f"{number} is record {sequence}", flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
