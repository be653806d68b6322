"""Beam's log API over one stream with one partition.

Rules: index = offset + 1. An offset without a visible record becomes a skip entry, so that a reader
sees every index. A broker that does not lead the partition redirects clients to the leader.
"""
