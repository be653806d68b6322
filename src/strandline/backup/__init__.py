"""Backups: copies of the stored batches and the metadata, taken from brokers that run.

``take`` copies from brokers into a ``BackupDirectory``; ``restore`` makes data directories of it.
"""
