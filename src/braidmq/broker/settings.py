"""What of the configuration the broker itself needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from braidmq.base import limits
from braidmq.base.key_ring import LoadKeys
from braidmq.base.naming import DEAD_LETTER_ENDING
from braidmq.broker.features import SecuritySettings
from braidmq.broker.journal import SNAPSHOT_AFTER_COMMANDS
from braidmq.log.partition import LogSettings


@dataclass(slots=True)
class BrokerSettings:
    data_dir: str
    defaults: LogSettings
    default_partitions: int = 3
    auto_create_topics: bool = True
    topics_max: int = limits.TOPICS_MAX
    checkpoint_interval_s: float = 60.0
    retention_interval_s: float = 60.0
    transaction_timeout_s: float = 60.0
    stage_timeout_s: float = 3600.0
    delay_ms_max: int = 24 * 3600 * 1000
    dlq_suffix: str = DEAD_LETTER_ENDING
    dlq_attempts_max: int = 3
    dlq_retry_ms: int = 1000
    schema_strict: bool = False
    """Whether a request that names a schema that is not there is refused."""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    journal_snapshot_commands: int = SNAPSHOT_AFTER_COMMANDS
    """After so many commands of one of the broker's own journals its state is written down, and older commands are let go."""
    journal_segment_bytes: int = 16 * limits.MIB
    encryption_enabled: bool = False
    load_keys: LoadKeys = lambda: None
    """Called when encryption is on, or when the data directory holds something encrypted."""
