"""The coordinators of consumer groups and of transactions; they run where their stream is led."""
