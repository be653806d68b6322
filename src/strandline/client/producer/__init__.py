"""From an appended record to its acknowledgement: batches, sequences, a sender per broker."""
