"""Deterministic simulation: whole clusters in one process, each run determined by a seed.

Virtual time, a network that loses, repeats, delays and cuts, processes that pause and die, disks
that forget what was not synced, or lie about it. Checkers judge what happened from outside; seeded
bugs prove that they see. The same seed gives the same history, byte for byte.
"""
