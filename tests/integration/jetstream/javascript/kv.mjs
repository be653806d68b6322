// Uses a key-value bucket with @nats-io/kv, as a service does; prints "ok" per operation.
import { Kvm } from "@nats-io/kv";
import { connect } from "@nats-io/transport-node";

function must(what, holds, found) {
  if (!holds) {
    console.log("failed", what, found);
    process.exit(1);
  }
  console.log("ok", what);
}

// fails returns the message of the error that a promise ends with.
async function fails(promise) {
  try {
    await promise;
    return "";
  } catch (error) {
    return error.message;
  }
}

const nc = await connect({ servers: process.argv[2] });
const kvm = new Kvm(nc);
const kv = await kvm.create("JS", { history: 3 });
must("create", (await kv.create("a", "1")) === 1);
let message = await fails(kv.create("a", "x"));
must("exists", message.includes("wrong last sequence"), message);
must("update", (await kv.update("a", "2", 1)) === 2);
message = await fails(kv.update("a", "x", 1));
must("old revision", message.includes("wrong last sequence: 2"), message);
must("put", (await kv.put("b.c", "v")) === 3);
let entry = await kv.get("a");
must("get", entry.string() === "2" && entry.revision === 2, entry);
must("get a revision", (await kv.get("a", { revision: 1 })).string() === "1");
must("no key", (await kv.get("none")) === null);

const keys = [];
for await (const key of await kv.keys()) keys.push(key);
must("keys", keys.sort().join() === "a,b.c", keys);
const history = [];
for await (const each of await kv.history({ key: "a" })) history.push(each.string());
must("history", history.join() === "1,2", history);

const watch = await kv.watch({ key: "a" });
const watched = [];
const watching = (async () => {
  for await (const each of watch) {
    watched.push(each.operation === "PUT" ? each.string() : each.operation);
    if (watched.length === 1) await kv.put("a", "3");
    if (watched.length === 2) await kv.delete("a");
    if (watched.length === 3) break;
  }
})();
await watching;
must("watch", watched.join() === "2,3,DEL", watched);
entry = await kv.get("a");
must("deleted", entry.operation === "DEL", entry);
must("create again", (await kv.create("a", "4")) > 4);
await kv.purge("a");
const status = await kv.status();
must("status", status.values === 2 && status.history === 3, status);
must("purge deletes", (await kv.purgeDeletes(0)).purged >= 1);
must("values", (await kv.status()).values === 1);
const names = [];
for await (const each of kvm.list()) names.push(each.bucket);
must("list", names.includes("JS"), names);
must("destroy", await kv.destroy());
await nc.close();
console.log("all done");
