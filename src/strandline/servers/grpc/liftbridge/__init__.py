"""Liftbridge's API, so that its clients work unchanged.

Rules: Liftbridge's offsets are inclusive and -1 means none; they are converted in this package
only. Its promises to clients are kept and its errors are not copied: docs/liftbridge.md lists the
differences. The metadata has the state of streams and groups; cursors are records.
"""
