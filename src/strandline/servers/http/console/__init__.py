"""The web console: pages for people, rendered by the broker.

Rules: the console is a client of its own cluster. Each request runs with the user's token
through the same Arrow Flight API as the CLI, so that validation, permissions, quotas and the
routing to leaders exist once. Pages run on a few threads of their own, never on the broker's loop.
Nothing is imported, connected or kept before the first page is asked for.
"""
