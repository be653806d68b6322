"""Replication of a partition as pure state machines, one per replica.

``replica.Replica`` takes events and the time and returns effects; a broker carries them out. No
I/O, no clock, no randomness, and no knowledge of what a batch holds or where it is stored.
"""
