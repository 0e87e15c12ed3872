"""Log lines on standard error: one an event, as text for people or as JSON for programs.

A line is one line, whatever a name or an error text in it holds: what breaks lines or drives terminals is written out. What
belongs to a request of the admin API carries its id. Nothing that is logged holds a payload or a secret; those who log see to it.
"""

from __future__ import annotations

import json
import logging
import sys
import time

_SEPARATORS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""What JSON lets stand and some programs take for the end of a line."""
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))} | _SEPARATORS
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = getattr(record, "request_id", "")
        if request_id:
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False).translate(_SEPARATORS)


class _TextLines(logging.Formatter):
    """For people. A traceback, which is for them, keeps its lines."""

    default_msec_format = "%s.%03d"

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_CONTROLS)
        request_id = getattr(record, "request_id", "")
        text = super().formatMessage(record)
        return f"{text} [request {request_id}]" if request_id else text


def set_up_logging(level: str, form: str) -> None:
    """Send BraidMQ's own lines to standard error; other libraries keep their settings."""
    handler = logging.StreamHandler(sys.stderr)
    text = _TextLines("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if form == "json" else text)
    root = logging.getLogger("braidmq")
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    root.propagate = False
