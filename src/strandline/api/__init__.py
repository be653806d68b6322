"""The Arrow Flight protocol between client and broker: tickets, actions, puts and errors.

Client and broker both import this package; it imports neither.
"""
