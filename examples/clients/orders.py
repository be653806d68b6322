"""Store orders, bill each once, and keep a price, with stock nats-py.

python examples/clients/orders.py nats://127.0.0.1:4222
"""

import asyncio
import sys

import nats


async def main(url: str) -> None:
    """Publish, read and acknowledge, put and get."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="orders", subjects=["orders.>"])
    for number in range(1, 4):
        ack = await js.publish("orders.paris", f"order {number}".encode())
        print(f"order {number} is synced as {ack.seq}")

    billing = await js.pull_subscribe("orders.>", durable="billing", stream="orders")
    for message in await billing.fetch(3, timeout=5):
        await message.ack_sync()  # returns once the ack is stored, so no redelivery
        print(f"billed: {message.data.decode()}")

    prices = await js.create_key_value(bucket="prices")
    await prices.put("apple", b"3")
    entry = await prices.get("apple")
    print(f"an apple costs {(entry.value or b'').decode()}")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
