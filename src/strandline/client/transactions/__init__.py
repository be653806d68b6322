"""Transactions, and staged writes."""
