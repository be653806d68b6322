"""Servers: the protocols through which clients reach a broker, in one package each."""
