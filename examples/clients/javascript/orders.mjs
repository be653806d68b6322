// Store orders, bill each once, and keep a price, with stock nats.js.
//
//     node orders.mjs nats://127.0.0.1:4222
import { connect } from "@nats-io/transport-node";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";

const nc = await connect({ servers: process.argv[2] });
const manager = await jetstreamManager(nc);
const js = jetstream(nc);
await manager.streams.add({ name: "orders", subjects: ["orders.>"] });
for (let number = 1; number <= 3; number++) {
  const ack = await js.publish("orders.paris", `order ${number}`);
  console.log(`order ${number} is synced as ${ack.seq}`);
}

await manager.consumers.add("orders", { durable_name: "billing", ack_policy: "explicit" });
const billing = await js.consumers.get("orders", "billing");
for await (const message of await billing.fetch({ max_messages: 3, expires: 5_000 })) {
  await message.ackAck(); // returns once the ack is stored, so no redelivery
  console.log(`billed: ${message.string()}`);
}

const prices = await new Kvm(nc).create("prices");
await prices.put("apple", "3");
console.log(`an apple costs ${(await prices.get("apple")).string()}`);
await nc.close();
