"""Puts a broker and its front ends together, and runs them as a process.

The only package that knows every part; nothing imports it but the CLI and ``testing``.
"""
