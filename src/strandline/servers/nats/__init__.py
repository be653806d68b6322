"""The NATS servers for publishers and consumers. Parsing and replies are pure.

protocol, headers, inboxes   bytes ↔ events, header blocks, subscriptions for replies (sans-io)
ingest, replies              message → record, outcome → answer
listener, connection         the broker's own listener
client, nats_connection, embedded_server   the connection to a nats-server, a child or external
frontend                     builds all of these
"""
