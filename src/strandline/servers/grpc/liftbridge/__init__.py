"""Liftbridge's API, so that its clients work unchanged.

Rules: its offsets are inclusive and -1 means none; they are converted here and nowhere deeper. What
its server promises to clients is kept, what it got wrong is done right: docs/liftbridge.md lists
where the two differ. The state of streams and groups is the metadata's, cursors are records.
"""
