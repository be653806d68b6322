"""Cluster metadata: brokers, streams, partitions and their leaders.

Pure: an immutable image (``image.py``) and commands (``commands.py``) that turn one image into the
next (``apply.py``, which asks ``brokers.py``, ``streams.py`` and, for one partition,
``partitions.py``). What to command is decided apart from that: where replicas go
(``placement.py``), who leads (``election.py``), what the controller does next (``controller.py``).
Who makes a command durable, and when, is the broker's business.
"""
