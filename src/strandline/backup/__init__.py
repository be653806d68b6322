"""Backups: copies of the stored batches and the metadata, taken from running brokers.

``take`` copies from brokers into a ``BackupDirectory``; ``restore`` makes data directories from it.
"""
