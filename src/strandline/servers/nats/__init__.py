"""NATS: what publishers speak. Protocol, routing and replies are pure; sockets are at the edge.

protocol, headers, inboxes   bytes ↔ events, header blocks, where replies go (sans-io)
routing, publish, replies    subject → partitions, message → record, outcome → answer
listener, connection         our own listener for publishers
subscriber, link, child      the way through a nats-server, ours or the user's
frontend                     builds the two ways in
"""
