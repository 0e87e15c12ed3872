"""What people and their tools see of a running broker: the admin API, metrics, health and the web console.

All of it is HTTP, served in a thread with an event loop of its own (`service.py`), so that slow clients, JSON and pages cost the
broker's loop nothing. The broker's state belongs to the broker's loop: whoever needs some of it asks through the gate
(`gate.py`).
"""
