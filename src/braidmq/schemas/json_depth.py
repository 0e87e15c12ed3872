"""How deep a JSON text nests, without parsing it.

Parsers recurse, so depth must be known before one sees the text. The scan runs in C whatever the text holds: escapes are
removed, then everything but brackets and quotes, then every second piece between quotes, which is the inside of a string.
Up to the first byte that is not JSON the count is exact, and no parser goes past that byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np

_DROPPED: Final = bytes(set(range(256)) - set(b'[]{}"'))
_CHUNK_BYTES: Final = 1 << 20
_STEP: Final = np.zeros(256, np.int8)
_STEP[[ord("["), ord("{")]] = 1
_STEP[[ord("]"), ord("}")]] = -1


def json_depth(text: bytes) -> int:
    """Most brackets open at once."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    inside = False
    depth = deepest = 0
    for start in range(0, len(text), _CHUNK_BYTES):
        pieces = text[start : start + _CHUNK_BYTES].translate(None, _DROPPED).split(b'"')
        brackets = b"".join(pieces[1::2] if inside else pieces[::2])
        inside ^= len(pieces) % 2 == 0
        if brackets:
            depths = np.cumsum(_STEP[np.frombuffer(brackets, np.uint8)], dtype=np.int32)
            deepest = max(deepest, depth + int(depths.max()))
            depth += int(depths[-1])
    return deepest
