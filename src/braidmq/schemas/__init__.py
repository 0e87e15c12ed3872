"""Schemas that messages are checked against: JSON Schema, Avro and Protocol Buffers behind one interface.

Nothing here keeps state, reads files or knows the broker. Every entry point takes bytes from a stranger, so each costs bounded
time and memory whatever the bytes are, and answers a fault with a text or a `BraidError`, never with a crash.
"""
