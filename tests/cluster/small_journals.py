"""Runs `braid serve` with journals that are soon let go of: a setting of the engine that no configuration has.

    python small_journals.py PYTHON -m braidmq serve ...
"""

from __future__ import annotations

import sys
from dataclasses import replace

from braidmq.cli.main import main
from braidmq.server import app

if __name__ == "__main__":
    configured = app.broker_settings
    app.broker_settings = lambda *given: replace(
        configured(*given), journal_snapshot_commands=3, journal_segment_bytes=400, checkpoint_interval_s=0.1
    )
    sys.exit(main(sys.argv[sys.argv.index("serve") :]))
