"""Reading of stored records, batch by batch, in the broker or in the reader's process."""
