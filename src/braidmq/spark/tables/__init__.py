"""Tables as streams: rows that are added to a Delta or Iceberg table, each once, in the order of its commits."""
