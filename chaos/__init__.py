"""Chaos runs: real clusters under load, with all kinds of faults, checked like simulations.

    python -m chaos --brokers 3 --minutes 2 --seed 7

``cluster`` starts brokers whose links go through proxies, ``faults`` causes faults, and ``load``
publishes, reads, and records everything in ``strandline.testing.history``; ``run`` combines them
for a seed. Nothing here looks inside a broker: what a client cannot see is no promise.
"""
