"""Tables of the lake: staging, decisions and commits, for each format and kind of store."""
