"""The shell around the cores: one event loop that owns the turn, the journal and the partitions.

Front ends hand records to partitions and hear back through responders; nothing here knows NATS,
Flight or HTTP.
"""
