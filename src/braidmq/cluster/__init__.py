"""Several brokers as one: metadata consensus, membership, replication and placement."""
