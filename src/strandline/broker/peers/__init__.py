"""The peer link: the connections between the brokers of a cluster.

``link.PeerLinks`` is its interface. ``frame``, ``handshake`` and ``session`` are pure;
``connection``, ``peer`` and ``link`` connect them with sockets. Nothing here interprets a frame's
header or attachments.
"""
