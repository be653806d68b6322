"""The broker: an event loop that owns group commit, journal and partitions, and runs the cores.

Front ends pass records to partitions and receive the outcome through an ack sink. Nothing here
knows NATS, Flight or HTTP.
"""
