"""Log lines on standard error: one an event, as text for people or as JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
import time

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(level: str, form: str) -> None:
    """Send BraidMQ's own lines to standard error; other libraries keep their settings."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    text.default_msec_format = "%s.%03d"
    handler.setFormatter(_JsonLines() if form == "json" else text)
    root = logging.getLogger("braidmq")
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    root.propagate = False
