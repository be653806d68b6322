"""Front ends: how the outside reaches a broker, one protocol each; siblings that share nothing."""
