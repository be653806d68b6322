"""The gRPC servers for existing clients: Liftbridge's API, and Beam's log over one stream.

Both use one small server (``connection``, ``calls``) on the library h2; ``liftbridge`` and ``beam``
implement the rpcs. Rules: everything runs on the broker's loop, except reading and encoding
records, which run on a thread pool. No state of the log is kept here.
"""
