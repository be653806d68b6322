"""Transactions, and writes that are staged for one."""
