"""Background work: checkpoints, retention, compaction, scrubbing, removal of files."""
