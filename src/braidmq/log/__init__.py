"""The durable, partitioned log: batches, segments, group commit, recovery and retention."""
