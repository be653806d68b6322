"""Reads of streams from brokers and local files, as Arrow."""
