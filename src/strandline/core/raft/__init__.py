"""Agreement among brokers on the metadata: a Raft core without I/O.

Source: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (2014), and
Ongaro's thesis (2014) for pre-vote, check-quorum, leadership transfer, linearizable reads (6.4) and
single-server membership changes (4.1-4.2).

Pure: messages and ticks in, an ordered ``Ready`` out (``raft.py`` says in which order to treat it).
No clock, no randomness of its own, no files, no sockets, no asyncio. Must not know what a command
means.
"""
