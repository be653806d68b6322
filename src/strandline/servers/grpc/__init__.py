"""The gRPC servers for existing clients: Liftbridge's API, and the API of Beam's log.

Both use one small server (``connection``, ``calls``) on the library h2; ``liftbridge`` and ``beam``
implement the rpcs. Rules: everything runs on the broker's loop, except reading and encoding
records, which run on a thread pool. These packages keep no state of the log.
"""
