"""Deterministic simulation: whole clusters in one process, each run determined by a seed.

Time is virtual. The network loses, repeats, delays and blocks messages; processes pause and crash;
disks lose unsynced writes, or lie about syncs. Checkers judge the results from outside; seeded bugs
prove that the checkers find mistakes. The same seed gives the same history, byte for byte.
"""
