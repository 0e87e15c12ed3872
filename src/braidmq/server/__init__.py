"""Sockets, TLS and sessions: what binds a protocol's codec to the broker."""
