"""gRPC for clients that exist already: Liftbridge's API, and Beam's log over one stream.

One small server (``connection``, ``calls``) for both, on the library h2; what a rpc means is in
``liftbridge`` and ``beam``. Rules: everything runs on the broker's loop, but reading and encoding
records, which has threads of its own; nothing of the log's state is kept here.
"""
