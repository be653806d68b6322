"""What the benchmarks of Spark share: a session, sources and sinks in memory, and measuring.

- `session`: starts Spark so that its workers find these modules;
- `memory`: a source and a sink that do nothing but hand over batches, the ceiling of Spark's API;
- `data`: sizes, filled streams, rows in memory;
- `meter`: wall clock and CPU of Spark and of servers apart, and streaming queries run to their end.
"""
