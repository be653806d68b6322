"""The shell around the cores: one event loop owns group commit, journal and partitions.

Front ends pass records to partitions and receive the outcome through an ack sink. Nothing here
knows NATS, Flight or HTTP.
"""
