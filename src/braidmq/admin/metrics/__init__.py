"""Metrics for Prometheus: what is measured (`table.py`), how it is taken (`snapshot.py`), and how it is written (`text.py`)."""
