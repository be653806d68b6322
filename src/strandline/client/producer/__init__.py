"""From an appended record to its ack: batches, sequences, and a sender for each broker."""
