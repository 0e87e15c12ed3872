"""Who is there, by hearsay: gossip between nodes, and names in the local network. Hints only: leaders follow from the quorum."""
