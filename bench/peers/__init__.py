"""Other brokers, run beside ours where they are installed.

Each module knows where to look for its server, how to start it with a given durability, and what to say when it is not
there. None of them is needed.
"""
