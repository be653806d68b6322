"""Cluster metadata: brokers, streams, partitions and their leaders.

Pure: an immutable image (``image.py``), and commands (``commands.py``) that turn one image into the
next (``apply.py``, with the rules in ``brokers.py``, ``streams.py`` and ``partitions.py``).
Decisions are made before a command is proposed: where replicas go (``placement.py``), which replica
leads (``election.py``), and what the controller does next (``controller.py``). The broker makes
commands durable.
"""
