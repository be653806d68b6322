"""Liftbridge's API, so that its clients work unchanged.

Rules: Liftbridge's offsets are inclusive, and -1 means none; only this package converts them. The
API keeps Liftbridge's promises without its errors: docs/liftbridge.md lists the differences. The
state of streams and groups is in the metadata; cursors are records.
"""
