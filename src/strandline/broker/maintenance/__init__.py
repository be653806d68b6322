"""Work in the background: checkpoints, retention, compaction, scrubbing, removal of files."""
