"""What travels between client and broker over Arrow Flight: tickets, actions, puts and errors.

Both ends import it; it knows neither of them.
"""
