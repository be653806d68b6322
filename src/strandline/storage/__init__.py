"""The durable log on one machine's disk: journal, segments, indexes, checkpoint and recovery.

Blocking calls only: no scheduling, no threads, no clock, no randomness; whoever calls passes the
time in and decides which thread waits. Only ``disk`` calls the file system.
"""
