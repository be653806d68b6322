// Uses streams and consumers with @nats-io/jetstream, as a service does; prints "ok" per operation.
import { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect, createInbox, nanos } from "@nats-io/transport-node";

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
  if (count === 0) return found;
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
const jsm = await jetstreamManager(nc);
const js = jetstream(nc);
await jsm.streams.add({ name: "JS", subjects: ["js.>"] });
let published = 0;
async function publish(count) {
  for (; count > 0; count--) await js.publish("js.x", String(++published));
}
await publish(20);
must("stream info", (await jsm.streams.info("JS")).state.messages === 20);
must("message", (await jsm.streams.getMessage("JS", { seq: 3 })).string() === "3");

await jsm.consumers.add("JS", { durable_name: "d", ack_policy: AckPolicy.Explicit });
const durable = await js.consumers.get("JS", "d");
let found = await take(await durable.fetch({ max_messages: 5, expires: 5000 }), 5);
must("fetch", same(found, numbers(1, 5)), found);
const next = await durable.next({ expires: 5000 });
must("next", next.string() === "6", next.string());
must("double ack", await next.ackAck());
found = await take(await durable.consume({ max_messages: 10 }), 14);
must("consume", same(found, numbers(7, 20)), found);
must("nothing more", (await durable.next({ expires: 1000 })) === null);

// An ordered consumer whose consumer is lost goes on without a gap.
const ordered = await js.consumers.get("JS");
const messages = await ordered.consume({ idle_heartbeat: 500, expires: 2000 });
const seen = [];
const reading = (async () => {
  for await (const each of messages) {
    seen.push(Number(each.string()));
    if (seen.length === 40) return;
  }
})();
while (seen.length < 20) await new Promise((resolve) => setTimeout(resolve, 20));
must("ordered consumer is deleted", await jsm.consumers.delete("JS", (await ordered.info(true)).name));
await publish(20);
await reading;
must("ordered", same(seen, numbers(1, 40)), seen);

const push = { deliver_subject: createInbox(), idle_heartbeat: nanos(1000), flow_control: true };
await jsm.consumers.add("JS", { durable_name: "p", ack_policy: AckPolicy.Explicit, ...push });
const pushed = await js.consumers.getPushConsumer("JS", "p");
found = await take(await pushed.consume(), 40);
must("push", same(found, numbers(1, 40)), found);
must("push is bound no longer", (await pushed.info(false)).num_pending === 0);

const orderedPush = await js.consumers.getPushConsumer("JS");
found = await take(await orderedPush.consume(), 40);
must("ordered push", same(found, numbers(1, 40)), found);

const last = { deliver_policy: DeliverPolicy.New, ack_policy: AckPolicy.None };
await jsm.consumers.add("JS", { name: "n", ...last });
const names = [];
for await (const each of jsm.consumers.list("JS")) names.push(each.name);
must("list", names.includes("d") && names.includes("p") && names.includes("n"), names);
must("delete", await jsm.consumers.delete("JS", "d"));
must("delete stream", await jsm.streams.delete("JS"));
await nc.close();
console.log("all done");
