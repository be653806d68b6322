"""The Arrow Flight front end: reads, bulk appends and administration over gRPC."""
