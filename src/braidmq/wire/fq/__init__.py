"""The fq protocol, sans-IO: bytes to typed values and back.

A connection begins with four bytes that say what it is for (`modes.py`). On a command connection a client names itself and its
queue (`auth.py`), binds route programs (`program.py`) and asks for figures (`commands.py`); on a data connection messages go both
ways (`messages.py`). The same port speaks some HTTP (`http.py`). Exchanges are topics under other rules for names (`naming.py`).

Whatever bytes arrive, reading ends in a value or in a `BraidError`, and memory grows with the bytes that came, never with a length
that was only announced.
"""
