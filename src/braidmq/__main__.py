"""`python -m braidmq` is `braid`."""

import sys

from braidmq.cli.main import main

sys.exit(main())
