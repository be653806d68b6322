"""Cores without input or output: consensus, replication, metadata, groups and transactions."""
