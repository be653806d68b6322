"""The peer link: how the brokers of a cluster talk to each other.

``link.PeerLinks`` is what the rest of the broker sees. ``frame``, ``handshake`` and ``session`` are
pure; ``connection``, ``peer`` and ``link`` put them on sockets. What the frames mean is the
business of the cores above; nothing here looks into a header or an attachment.
"""
