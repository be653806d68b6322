// Uses consumers with the older package "nats", as a service does; prints "ok" per operation.
import { AckPolicy, connect, consumerOpts, createInbox } from "nats";

function must(what, holds, found) {
  if (!holds) {
    console.log("failed", what, found);
    process.exit(1);
  }
  console.log("ok", what);
}

// take returns the payloads of so many messages, acknowledged.
async function take(messages, count) {
  const found = [];
  for await (const each of messages) {
    found.push(Number(each.string()));
    each.ack();
    if (found.length === count) break;
  }
  return found;
}

const numbers = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => first + i);
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

const nc = await connect({ servers: process.argv[2] });
const jsm = await nc.jetstreamManager();
const js = nc.jetstream();
await jsm.streams.add({ name: "OLDJS", subjects: ["oldjs.>"] });
for (let number = 1; number <= 20; number++) await js.publish("oldjs.x", String(number));

await jsm.consumers.add("OLDJS", { durable_name: "d", ack_policy: AckPolicy.Explicit });
const durable = await js.consumers.get("OLDJS", "d");
let found = await take(await durable.fetch({ max_messages: 5, expires: 5000 }), 5);
must("fetch", same(found, numbers(1, 5)), found);
found = await take(await durable.consume(), 15);
must("consume", same(found, numbers(6, 20)), found);

const ordered = await js.consumers.get("OLDJS");
found = await take(await ordered.consume(), 20);
must("ordered", same(found, numbers(1, 20)), found);

let options = consumerOpts();
options.durable("p").deliverTo(createInbox()).ackExplicit().manualAck();
found = await take(await js.subscribe("oldjs.>", options), 20);
must("push", same(found, numbers(1, 20)), found);

options = consumerOpts();
options.orderedConsumer();
found = await take(await js.subscribe("oldjs.>", options), 20);
must("ordered push", same(found, numbers(1, 20)), found);

options = consumerOpts();
options.durable("q").queue("q").deliverTo(createInbox()).ackExplicit().manualAck();
found = await take(await js.subscribe("oldjs.>", options), 20);
must("queue", same(found, numbers(1, 20)), found);

must("delete stream", await jsm.streams.delete("OLDJS"));
await nc.close();
console.log("all done");
