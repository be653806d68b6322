"""Reading what is stored, batch by batch, in the broker or in the process of who reads."""
