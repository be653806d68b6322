"""Consumers that acknowledge each record: who gets what, when again, and what is done."""
