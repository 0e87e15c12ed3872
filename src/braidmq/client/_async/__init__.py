"""The source of the client. Its blocking twin in `_sync` is generated from it by `tools/unasync.py`."""
