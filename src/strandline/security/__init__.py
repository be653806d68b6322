"""Access control: principals, rules and decisions, as pure values and functions.

Rules: no I/O, no clock, no randomness. Everything that no rule allows is rejected. Nothing here
knows brokers, connections or protocols: a server identifies the caller and the resource, and asks
this package.
"""
