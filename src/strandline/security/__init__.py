"""Access control: principals, rules and decisions, as pure values and functions.

Rules: no I/O, no clock, no randomness; what is not allowed is refused. Nothing here knows brokers,
connections or wires: front ends find out who asks and for what, and ask here.
"""
