"""The Arrow Flight server: reads, bulk appends and administration over gRPC."""
