"""Encryption at rest: master keys, the data keys they wrap, and batches sealed with data keys.

Rules: nothing here knows where keys come from or where wrapped ones are kept; ``cryptography`` is
used here and nowhere else. No key, wrapped or not, is ever part of a message or of a ``repr``.
"""
