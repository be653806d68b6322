"""Chaos runs: real clusters under load, broken in every way, checked like simulations.

    python -m chaos --brokers 3 --minutes 2 --seed 7

``cluster`` starts brokers whose links go through proxies, ``faults`` breaks things, ``load``
publishes and reads and tells ``strandline.testing.history`` everything; ``run`` puts a seed's story
together. Nothing here looks inside a broker: what a client cannot see is no promise.
"""
