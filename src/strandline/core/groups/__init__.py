"""Consumer groups as pure state machines.

Who reads which partition (``assignment``), what is kept of it and of the positions reached
(``state``), and who decides (``coordinator``).

Rules: no I/O, no clock, no randomness; time is an argument. Nothing here knows logs, brokers or
wires; ``broker.groups`` brings them together.
"""
