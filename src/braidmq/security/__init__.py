"""Who somebody is, what they may do, how fast, and what is written down about it.

Users, roles and ACLs are state machines whose commands live in the metadata journal; decisions are made from them in
`authorizer.py` and nowhere else, whichever protocol asks. Nothing here knows a socket.
"""
