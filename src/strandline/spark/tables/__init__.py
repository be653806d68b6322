"""Tables of the lake: what is staged, decided and committed, by format and by kind of store."""
