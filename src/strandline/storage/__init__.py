"""The durable log on one machine's disk: journal, segments, indexes, checkpoint and recovery.

Blocking calls only: no scheduling, no threads, no clock, no randomness. The caller passes the time
and chooses the thread. Only ``disk`` calls the file system.
"""
