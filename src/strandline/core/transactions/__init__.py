"""Transactions as pure state machines.

Who decides (``coordinator``, ``markers``), what is kept of it (``state``), and what a partition
knows of decisions (``index``).

Rules: no I/O, no clock, no randomness; time is an argument. Nothing here knows logs, brokers or
wires; ``broker.transactions`` brings them together.
"""
