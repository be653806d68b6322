"""From an accepted record to its acknowledgement: partitions, group commit, journal sync."""
