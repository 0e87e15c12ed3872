"""The file in which the steady clock survives a restart of the broker.

It is written at a start, with each checkpoint and at an orderly stop. A crash leaves one that is a minute old at most, which
matters only where the machine was started anew and its clock set back: time goes on from a minute earlier then. A file that is
missing or damaged makes a start believe the machine's clock, so removing it is how an operator asks for that.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from braidmq import hot
from braidmq.base.disk import Disk
from braidmq.base.steady_clock import KeptTime, SteadyClock

_WORTH_SAYING_MS: Final = 10_000

logger = logging.getLogger("braidmq.clock")


class TimeFile:
    def __init__(self, disk: Disk, data_dir: str, clock: SteadyClock) -> None:
        self._disk = disk
        self._path = f"{data_dir}/clock"
        self._clock = clock

    def resume(self) -> None:
        """Let the clock go on from where the last run left it."""
        kept = self._load()
        if kept is None:
            return
        ahead_ms = self._clock.go_on_from(kept)
        if abs(ahead_ms) > _WORTH_SAYING_MS:
            logger.warning(
                "the machine's clock was set since the last run: delays and expiry go on %d s %s of it; to have the next start "
                "believe it, stop the broker and remove %s",
                abs(ahead_ms) // 1000, "ahead" if ahead_ms > 0 else "behind", self._path,
            )

    def keep(self, kept: KeptTime) -> None:
        """Write down what time it is. Blocks: call it off the loop, with what the clock said on the loop."""
        body = json.dumps(kept).encode()
        try:
            self._disk.replace_file(self._path, b"%08x\n" % hot.crc32c(body) + body)
        except OSError as fault:
            # A full disk must not keep a broker from serving what it has.
            logger.error("the time was not written down: %s", fault)

    def _load(self) -> KeptTime | None:
        try:
            head, _, body = self._disk.read_file(self._path).partition(b"\n")
            if int(head, 16) != hot.crc32c(body):
                raise ValueError("checksum mismatch")
            now_ms, since_boot_s, boot_id = json.loads(body)
        except FileNotFoundError:
            return None
        except ValueError as fault:
            logger.warning("%s is damaged (%s): the machine's clock is believed", self._path, fault)
            return None
        return KeptTime(float(now_ms), float(since_boot_s), str(boot_id))
