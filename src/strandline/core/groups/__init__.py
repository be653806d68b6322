"""Consumer groups as pure state machines.

``assignment`` distributes partitions over members, ``state`` holds members, assignments and
committed offsets, and ``coordinator`` decides.

Rules: no I/O, no clock, no randomness; time is an argument. Nothing here knows logs, brokers or
network protocols; ``broker.coordinators.groups`` connects them.
"""
