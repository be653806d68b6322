"""The Arrow Flight protocol between client and broker: tickets, actions, puts and errors.

Both ends import it; it knows neither of them.
"""
