"""Transactions as pure state machines.

``coordinator`` and ``markers`` decide, ``state`` holds what is stored, and ``index`` is what a
partition knows about outcomes.

Rules: no I/O, no clock, no randomness; time is an argument. Nothing here knows logs, brokers or
network protocols; ``broker.coordinators.transactions`` connects them.
"""
