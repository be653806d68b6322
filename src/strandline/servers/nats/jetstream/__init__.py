"""The JetStream API: standard NATS clients manage and read streams as they do JetStream's.

A stream of one partition is a JetStream stream, with sequence = offset + 1. A stream of several
partitions is shown as one such stream per partition, ``name:0`` and so on. A request that has no
meaning for a stream here is rejected with JetStream's own code. What is not built is rejected, too,
and never ignored.
"""
