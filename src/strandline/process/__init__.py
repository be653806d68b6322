"""The broker process: it builds a broker with its servers and runs them.

The only package that knows all parts; only the CLI and ``testing`` import it.
"""
