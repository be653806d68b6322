"""The coordinators of consumer groups and of transactions, run where their stream is led."""
