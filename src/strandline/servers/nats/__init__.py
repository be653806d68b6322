"""The NATS servers for publishers. Parsing and replies are pure; sockets are at the edge.

protocol, headers, inboxes   bytes ↔ events, header blocks, where replies go (sans-io)
ingest, replies              message → record, outcome → answer
listener, connection         our own listener for publishers
client, nats_connection, embedded_server   the connection to a nats-server, a child or external
frontend                     builds both
"""
