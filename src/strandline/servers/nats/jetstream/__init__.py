"""The JetStream API: stock NATS clients manage streams and read them, as they do JetStream's.

A stream of one partition is JetStream's stream, with sequence = offset + 1. One with several is
shown as one such stream per partition, ``name:0`` and so on. What a stream here cannot mean is
rejected with JetStream's own code, and what is not built is rejected too, never ignored.
"""
