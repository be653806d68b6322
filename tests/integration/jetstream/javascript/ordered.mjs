// Reads a stream in order by a consumer of @nats-io/jetstream until it has seen so many messages,
// whatever happens to the server's leader meanwhile. It prints how far it is, and fails at a gap, a
// message out of order, or one that comes twice.
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const [url, stream, wanted] = process.argv.slice(2);
const nc = await connect({ servers: url });
const js = jetstream(nc);

const consumer = await js.consumers.get(stream);
let last = 0;
for await (const each of await consumer.consume({ idle_heartbeat: 500, expires: 2000 })) {
  if (each.seq !== last + 1) {
    console.log("failed: sequence", each.seq, "after", last);
    process.exit(1);
  }
  last = each.seq;
  console.log("pull", last);
  if (last === Number(wanted)) break;
}
console.log("all done");
process.exit(0);
