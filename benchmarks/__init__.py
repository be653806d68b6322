"""Benchmarks: Strandline side by side with its peers, on one machine, in one invocation.

Run them as modules from the root of the repository: `python -m benchmarks.curve --help`.

- `loadgen`: the native load generator (C), compiled on demand;
- `peers`: starts each system with durable settings and a fresh data directory;
- `curve`: appends/s over 1..128 connections; `partitions`: over 1..1000 of them;
  `lone`: the latency of one appender;
- `spark_read`, `spark_stream`, `spark_copy`, `spark_trigger`, `spark_load`, `spark_kafka`: Spark's
  sources, sinks and pipelines, with what they share in `spark`;
- `changelog`: many keys into a table.

Rules: only loopback traffic; every load is bounded in time and in count; every row of a result
names what an ack survives; rows of different ack classes are never compared in one ratio unless
the table says so; only processes started here are ended, by their id.
"""
