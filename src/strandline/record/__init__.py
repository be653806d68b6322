"""Records and batches as bytes: the same on disk, between brokers and in the client.

Pure: bytes in, bytes or Arrow out; no clock, no files, no sockets.
"""
