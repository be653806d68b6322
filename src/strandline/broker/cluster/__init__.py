"""A broker of a cluster: connects consensus, metadata, replication and the peer link.

``broker.ClusterBroker`` is a broker whose streams come from the metadata log. Its ``membership``
owns the parts that communicate with other brokers: ``state_machine`` (the image), ``requests``
(proposals), ``controller`` (decides while this broker leads the quorum), ``replicas`` and
``replica``.
"""
