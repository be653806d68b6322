"""Beam's log API over one stream with one partition.

Rules: index = offset + 1; what the log itself used, compacted or skipped is a skip entry, so that a
reader sees every index. A broker that does not lead the partition redirects.
"""
