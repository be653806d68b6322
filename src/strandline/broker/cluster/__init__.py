"""A broker among others: what brings consensus, metadata, replication and the peer link together.

``broker.ClusterBroker`` is a broker whose streams come from the metadata log; its ``membership``
owns what talks to the others: ``machine`` (the image), ``requests`` (who proposes where),
``controller`` (decides while it leads the quorum), ``replicas`` and ``replica`` (the copies).
"""
