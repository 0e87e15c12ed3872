"""Every error of BraidMQ, as data.

One row an error. A row gives the stable code, the sentence a person reads, what each protocol sends, the HTTP status
and what to do about it. Code raises `BraidError("TOPIC_NOT_FOUND", topic=...)`; each protocol edge asks the row for its
own form. The reference page in the documentation is generated from the same table, and a test holds the two equal.

Two kinds of fault meet here. A *remote* fault (the peer sent something wrong, or asked for what is not there) is a
`BraidError` and becomes a reply. A *local* fault (a bug of ours) is any other exception: the session answers `INTERNAL`,
logs the traceback, and lives on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One row of the table."""

    code: str
    text: str
    """Sentence with named fields; after `code: ` it is what a FlyMQ client of the documented dialect reads."""
    http: int
    blipmq: int
    """Code of the BlipMQ schema's `ErrorCode`."""
    hint: str
    """What the reader can do about it."""
    retriable: bool = False
    """Whether the same request may succeed later without a change."""
    v126: str | None = None
    """Text for the published FlyMQ clients where they look for something else than `text`."""
    fq: str | None = None
    """Text for fq clients where they look for something else than `text`."""


_ROWS: Final = (
    # --- what was asked for is not there
    ErrorSpec("TOPIC_NOT_FOUND", "topic not found: {topic}", 404, 2, "Create the topic, or check its spelling with `braid topic ls`."),
    ErrorSpec("PARTITION_NOT_FOUND", "partition {partition} not found", 404, 2, "`braid topic info` shows the partitions a topic has."),
    ErrorSpec("PARTITION_OUT_OF_RANGE", "partition {partition} out of range", 404, 2, "`braid topic info` shows the partitions a topic has."),
    ErrorSpec("EOF", "offset {offset} is at or past the end of {topic}/{partition}", 404, 2,
              "Nothing was written there yet; ask again later or use a consumer that waits.", True,
              "EOF: offset {offset} is at or past the end of {topic}/{partition}"),
    ErrorSpec("OFFSET_OUT_OF_RANGE", "offset out of range: {offset} of {topic}/{partition}, which holds {oldest} to {newest}", 416, 2,
              "Retention removed it, or it was never written; start at the oldest offset."),
    # --- what was asked for is not allowed
    ErrorSpec("INVALID_TOPIC", "invalid topic name: {reason}", 400, 1, "Names are 1 to 1020 bytes of UTF-8, without control characters."),
    ErrorSpec("INVALID_PARTITIONS", "invalid partition count: {partitions} (1 to {most})", 400, 8, "Ask for a count in the range."),
    ErrorSpec("INVALID_MODE", "unknown subscribe mode: {mode}", 400, 8, "Modes are `earliest`, `latest` and `commit`."),
    ErrorSpec("INVALID_GROUP", "invalid group name: {reason}", 400, 8, "Group names are up to 1100 bytes of UTF-8, without control characters."),
    ErrorSpec("INVALID_ARGUMENT", "invalid argument: {reason}", 400, 8, "The message names the argument and what it takes."),
    ErrorSpec("TOPIC_LIMIT", "the broker already has {limit} topics", 409, 7, "Remove topics, or raise `max_topics`."),
    # --- consumer groups
    ErrorSpec("GROUP_NOT_FOUND", "consumer group not found: {topic}:{group}", 404, 2, "`braid group ls` shows the groups of every topic."),
    ErrorSpec("INVALID_RESET_MODE", "unknown reset mode: {mode}", 400, 8, "Modes are `earliest`, `latest`, `offset` and `timestamp`."),
    ErrorSpec("UNKNOWN_MEMBER", "unknown member {member} of group {group}", 409, 8,
              "Its session ended, or the broker was restarted: join the group again.", True),
    ErrorSpec("FENCED_MEMBER", "member is fenced: {member} of group {group}, {reason}", 409, 8,
              "The group was divided anew without it: drop what was not committed and join again."),
    ErrorSpec("GROUP_LIMIT", "{what} already has {limit} {things}", 409, 7, "Remove groups that are no longer needed, or use fewer members."),
    # --- the frame or payload makes no sense
    ErrorSpec("UNKNOWN_OPCODE", "unknown opcode: {opcode}", 400, 8, "This broker does not know the operation; check the client's version."),
    ErrorSpec("MALFORMED_PAYLOAD", "invalid binary format: {reason}", 400, 8, "The client encoded a request wrongly; see the protocol page."),
    ErrorSpec("MALFORMED_FRAME", "not a FlyMQ frame: {reason}", 400, 8, "Something else than FlyMQ speaks on this port; the connection is closed."),
    ErrorSpec("FRAME_TOO_LARGE", "payload of {size} bytes is over the limit of {limit}", 413, 3, "Send less in one request."),
    ErrorSpec("RECORD_TOO_LARGE", "a record of {size} bytes is over the limit of {limit}", 413, 3, "Split the value, or store it elsewhere."),
    ErrorSpec("UNSUPPORTED_COMPRESSION", "unsupported compression: {name}", 415, 8, "Use gzip or no compression, or install the extra that the message names."),
    ErrorSpec("INVALID_BATCH", "invalid batch: {reason}", 400, 8, "The client built a batch wrongly; see the batch format page."),
    ErrorSpec("MALFORMED_MESSAGE", "not a BlipMQ message: {reason}", 400, 8, "The peer damaged the message or speaks something else; the connection is closed."),
    ErrorSpec("INVALID_MESSAGE", "message refused: {reason}", 400, 8, "The message is whole, but asks for what BlipMQ does not have; the connection stays."),
    ErrorSpec("INVALID_EXPRESSION", "invalid filter expression at position {position}: {reason}", 400, 8, "The position counts characters from 0; see the BlipMQ page."),
    # --- delivery
    ErrorSpec("QUEUE_FULL", "queue full: {reason}", 503, 4, "A subscriber is behind: send again later, or slower.", True),
    ErrorSpec("TTL_EXPIRED", "the message expired after {ttl_ms} ms, before it was accepted", 504, 9, "Give it more time to live, or send less at once.", True),
    ErrorSpec("SUBSCRIBER_LIMIT", "there are already {limit} {what}", 409, 7, "Unsubscribe what is no longer needed, or use a pattern for many topics."),
    ErrorSpec("CLIENT_OF_ANOTHER", "client_id {client!r} belongs to somebody else", 403, 6, "Choose another client_id, or log in as whoever created it."),
    ErrorSpec("KEEPALIVE_TIMEOUT", "keepalive timeout: nothing came for {seconds:g} s", 408, 8, "Send a Ping at least once in an interval.", True),
    ErrorSpec("SHUTTING_DOWN", "shutting down", 503, 7, "Connect again when the broker is back.", True),
    # --- users and rights
    ErrorSpec("AUTHENTICATION_REQUIRED", "authentication required", 401, 5, "Log in: give the client a user and a password."),
    ErrorSpec("UNAUTHORIZED", "unauthorized", 403, 6, "The user needs a role with the permission, or to be named in the topic's ACL."),
    ErrorSpec("USER_DISABLED", "user account is disabled", 403, 5, "An administrator can enable it again."),
    ErrorSpec("INVALID_CREDENTIALS", "invalid username or password", 401, 5, "Check both; neither is named, so that nobody can find out which users exist."),
    ErrorSpec("INVALID_PASSWORD", "invalid current password", 403, 5, "A changed password needs the one before it."),
    ErrorSpec("INVALID_API_KEY", "invalid API key", 401, 5, "Check the key, or the `user:password` that stands for it; the connection is closed."),
    ErrorSpec("AUTH_THROTTLED", "too many failed logins; authentication is refused for {seconds:.0f} s", 429, 5,
              "Wait, then try once with the right password; a success ends the waiting.", True),
    ErrorSpec("USER_EXISTS", 'user "{user}" already exists', 409, 8, "Choose another name, or change the user that exists."),
    ErrorSpec("USER_NOT_FOUND", 'user "{user}" not found', 404, 8, "Check the spelling against the list of users."),
    ErrorSpec("OWN_ACCOUNT", "cannot delete your own account", 409, 8, "Another administrator has to do it."),
    ErrorSpec("ACL_NOT_FOUND", 'there is no ACL of "{topic}"', 404, 8, "`braid acl ls` shows the ACLs."),
    ErrorSpec("ROLE_EXISTS", 'role "{role}" already exists', 409, 8, "Choose another name; built-in roles cannot be changed."),
    ErrorSpec("ROLE_NOT_FOUND", 'role "{role}" not found', 404, 8, "Check the spelling against the list of roles."),
    ErrorSpec("ROLE_BUILT_IN", 'role "{role}" is built in', 409, 8, "Built-in roles stay; give users a role of your own instead."),
    ErrorSpec("ROLE_IN_USE", 'role "{role}" is in use by {where}', 409, 8, "Take it from the users and the ACLs that name it first."),
    ErrorSpec("ACCOUNT_LIMIT", "the broker already has {limit} {what}", 409, 7, "Remove some that are no longer needed."),
    ErrorSpec("ANONYMOUS_DISABLED", "cannot make topic public because anonymous access is disabled in server configuration", 409, 8,
              "Set `auth_allow_anonymous`, or name users and roles in the ACL."),
    ErrorSpec("AUDIT_DISABLED", "audit trail is not enabled", 409, 8, "Set `audit_enabled` and restart the broker."),
    ErrorSpec("AUDIT_ADMIN_REQUIRED", "admin access required for audit {what}", 403, 6, "Only users with the admin permission read the trail."),
    ErrorSpec("AUDIT_EXPORT_TOO_LARGE", "the export is larger than {limit} bytes", 413, 3, "Narrow the time range, and export in parts."),
    # --- idempotent producers
    ErrorSpec("OUT_OF_ORDER_SEQUENCE", "producer {producer} sent sequence {sequence} where {expected} comes next", 409, 8,
              "An earlier batch of this producer is missing; create a new producer."),
    ErrorSpec("FENCED_PRODUCER", "producer {producer} epoch {epoch} was replaced by epoch {current}", 409, 8,
              "A newer instance of this producer took over; stop this one."),
    # --- transactions, delayed and expiring messages, dead letters
    ErrorSpec("TRANSACTION_NOT_FOUND", "transaction not found: {id}", 404, 2,
              "It was never begun, or the broker was restarted since: begin a new one and send its records again."),
    ErrorSpec("TRANSACTION_NOT_ACTIVE", "transaction is not active: {state}", 409, 8, "Begin a new transaction; this one has ended."),
    ErrorSpec("TRANSACTION_COMMITTED", "cannot abort committed transaction {id}", 409, 8, "Its records are readable; nothing takes them back."),
    ErrorSpec("TRANSACTION_LIMIT", "{what} already has {limit} {things}", 409, 7, "Commit earlier, or in several transactions."),
    ErrorSpec("STAGE_NOT_FOUND", "of epoch {epoch} of writer {writer}, task {task} has {found} staged batches, not {wanted}", 409, 8,
              "Its stage was given up, or nobody came back for it in time: write the epoch again."),
    ErrorSpec("STAGE_LIMIT", "{what} already has {limit} {things}", 409, 7,
              "Write smaller batches (`maxOffsetsPerTrigger`), or wait until others have published theirs.", True),
    ErrorSpec("MESSAGE_EXPIRED", "message expired: offset {offset} of {topic}/{partition}", 410, 2,
              "Its time to live is over. Read on at the next offset."),
    ErrorSpec("MESSAGE_NOT_FOUND", "message not found: {id}", 404, 2, "It was delivered, cancelled, replayed or purged, or never existed."),
    ErrorSpec("DELAY_TOO_LONG", "delay {delay_ms}ms exceeds maximum allowed delay {limit_ms}ms", 400, 8, "Ask for less, or raise `delay_max_s`."),
    ErrorSpec("DELAYED_LIMIT", "the broker already keeps {limit} delayed messages", 409, 7, "Wait until some are delivered, or cancel some.", True),
    # --- pipelines
    ErrorSpec("PIPELINE_NOT_FOUND", "pipeline not found: {pipeline}", 404, 2, "`braid pipeline ls` shows the pipelines that the broker knows."),
    ErrorSpec("PIPELINE_LIMIT", "the broker already has {limit} pipelines", 409, 7, "Remove some that are no longer needed."),
    ErrorSpec("PIPELINE_RUNNING", "pipeline {pipeline} is running: {where}, last heard of {seconds:.0f} s ago", 409, 8,
              "Stop it with `braid pipeline stop`, or take over with --replace."),
    ErrorSpec("PIPELINE_RUN_ENDED", "run {run} of pipeline {pipeline} has ended: {reason}", 409, 8,
              "Another run took over, or it was removed; this one has to end."),
    ErrorSpec("PIPELINE_INVALID", "invalid pipeline: {problems}", 400, 8, "`braid pipeline check` shows every problem with its line."),
    ErrorSpec("PIPELINE_FAILED", "pipeline {pipeline} failed in {step}: {reason}", 500, 7, "The message names the step; `braid pipeline logs` has the rows that led to it."),
    ErrorSpec("PIPELINE_CHECKPOINT_GONE", "pipeline {pipeline} has run before, and there is no checkpoint at {path}", 409, 8,
              "Bring it back, or name the folder it is in. --fresh begins anew: rows that topics and tables without a key hold then come to them again."),
    ErrorSpec("PIPELINE_REPLAY_REFUSED", "cannot replay {pipeline}: {reason}", 409, 8, "See the rule of each sink in the page about pipelines."),
    ErrorSpec("PIPELINE_REPLAYS_WAIT", "{count} replays of pipeline {pipeline} wait for a run already", 409, 8, "Start a run of it, or cancel some."),
    ErrorSpec("PIPELINE_REPLAY_OVER", "replay {number} of pipeline {pipeline} cannot be changed: {reason}", 409, 8, "`braid pipeline show` lists its replays with their states."),
    # --- storage
    ErrorSpec("STORAGE_FULL", "no space left for {topic}/{partition}; nothing was written", 507, 7,
              "Free disk space or lower the retention; producing works again at once.", True),
    ErrorSpec("STORAGE_FAILED", "{topic}/{partition} is read-only: {reason}", 503, 7,
              "The disk failed a sync, so nothing later can be trusted. Check the disk, then restart the broker."),
    ErrorSpec("CORRUPT_LOG", "corrupt data in {path} at byte {position} (offset {offset}): {reason}", 500, 7,
              "Run `braid log verify`; restore the segment from a replica or a backup."),
    ErrorSpec("FORMAT_UNSUPPORTED", "{path} at byte {position} needs {feature}, which this build does not read", 501, 7,
              "Use the version that wrote the data."),
    ErrorSpec("BACKUP_NOT_FOUND", "no such backup: {backup}", 404, 2,
              "It ended, nobody read of it for too long, or the broker was restarted: begin another."),
    ErrorSpec("BACKUP_LIMIT", "{limit} backups are being read already", 409, 7, "Wait until one of them is done.", True),
    ErrorSpec("BACKUP_INVALID", "{path} is no usable backup: {reason}", 422, 7,
              "Use another backup; `braid verify` says all that is wrong with this one."),
    ErrorSpec("DATA_DIR_LOCKED", "another broker uses {path}", 409, 7, "Stop the other broker, or choose another `--data-dir`."),
    ErrorSpec("DATA_DIR_INVALID", "{path} is not usable as a data directory: {reason}", 500, 7, "Check the path, its owner and its file system."),
    ErrorSpec("ENCRYPTION_KEY_MISSING", "encryption key missing: {reason}", 500, 7,
              "Give the broker every key that its data was written with, in `BRAID_ENCRYPTION_KEYS` or `encryption_key_file`. Nothing was changed."),
    ErrorSpec("ENCRYPTION_KEY_WRONG", "wrong encryption key: {reason}", 500, 7,
              "Start the broker with the keys that its data was written with. Nothing was changed."),
    # --- schemas
    ErrorSpec("SCHEMA_NOT_FOUND", "schema not found: {name}", 404, 2, "`braid schema ls` shows the schemas and their versions."),
    ErrorSpec("SCHEMA_KIND", "unsupported schema type: {kind}", 400, 8, "Types are `json`, `avro` and `protobuf` (or `proto`)."),
    ErrorSpec("SCHEMA_INVALID", "invalid {kind} schema: {reason}", 400, 8, "The definition itself is wrong; the message says where."),
    ErrorSpec("SCHEMA_UNAVAILABLE", "{kind} schemas need the package {package}, which is not installed", 501, 7,
              "Install the extra: `pip install 'braidmq[schemas]'`."),
    ErrorSpec("SCHEMA_INCOMPATIBLE", "schema compatibility check failed: {name} is not {mode} compatible: {reasons}", 409, 8,
              "Change the definition, or the compatibility mode of the schema."),
    ErrorSpec("SCHEMA_CONFLICT", "schema {name} was changed by someone else meanwhile", 409, 7, "Look at the newest version and register again.", True),
    ErrorSpec("SCHEMA_IN_USE", "schema {name} is what topic {topic} is checked against", 409, 8,
              "Unbind the topic first, or delete only versions that are not the last one."),
    ErrorSpec("SCHEMA_LIMIT", "too many schemas: {reason}", 409, 7, "Delete schemas or versions that nothing uses."),
    ErrorSpec("SCHEMA_VALIDATION_FAILED", "schema validation failed: [{errors}]", 400, 8, "The message does not fit the schema; nothing was written."),
    # --- fq: the texts are those of its published broker, which programs compare with
    ErrorSpec("FQ_AUTH_EXPECTED", "auth command expected", 401, 5, "A client says who it is before anything else."),
    ErrorSpec("FQ_AUTH_METHOD", "unsupported auth method", 401, 5, "Plain authentication, method 0, is the only one."),
    ErrorSpec("FQ_NAME_TOO_LONG", "{what} is too long", 400, 1, "Users and queues have at most 127 bytes, a queue with its type 1023."),
    ErrorSpec("INVALID_QUEUE_TYPE", "invalid queue type: {kind}", 400, 8, "Types are `mem` and `disk`."),
    ErrorSpec("INVALID_QUEUE_PARAM", "invalid queue param: {param}", 400, 8,
              "Parameters are `public`, `private`, `drop`, `block`, `backlog=N`, `permanent` and `transient`."),
    ErrorSpec("QUEUE_IN_USE", "requested queue is private and in use", 409, 7, "Wait until its client is gone, or make the queue public.", True, None,
              "requested queue is private and in use\n"),
    ErrorSpec("QUEUE_TYPE_DIFFERS", "requested type {asked}, queue is {existing}", 409, 8, "Ask for what the queue is, or use another name."),
    ErrorSpec("QUEUE_SHARING_DIFFERS", "requested {asked}, queue is {existing}", 409, 8, "Ask for what the queue is, or use another name."),
    ErrorSpec("QUEUE_POLICY_DIFFERS", "request {asked}, queue is {existing}", 409, 8, "Ask for what the queue is, or use another name."),
    ErrorSpec("QUEUE_UNAVAILABLE", "initialization of disk queue failed", 503, 7, "The broker's log says what the disk refused."),
    ErrorSpec("QUEUE_CLIENT_LIMIT", "can't add you to queue", 409, 7, "The queue has as many clients as it may have.", True),
    ErrorSpec("QUEUE_LIMIT", "{what} already has {limit} {things}", 409, 7, "Let go of queues or bindings that nobody uses."),
    ErrorSpec("CLIENT_SILENT", "client heartbeat failed", 408, 7, "Send heartbeats at the interval that was asked for, on the command connection."),
    ErrorSpec("INVALID_PROGRAM", "invalid route program: {reason} at byte {at}", 400, 8, "The message says where; see the grammar on the fq page."),
    ErrorSpec("MALFORMED_FQ", "this is not fq: {reason}", 400, 8, "Nothing says where the next message begins, so the connection is closed."),
    ErrorSpec("SUBMIT_REFUSED", "{reason}", 500, 8, "A message by HTTP needs a body with its length, and the headers X-Fq-Exchange and X-Fq-Route."),
    ErrorSpec("MALFORMED_HTTP", "cannot read the HTTP request: {reason}", 400, 8, "Send the request line, headers and a body with its length."),
    # --- the broker
    ErrorSpec("CONNECTION_LIMIT", "the broker already serves {limit} connections", 503, 7, "Close idle clients, or raise `max_connections`.", True),
    ErrorSpec("NOT_READY", "the broker is {state}", 503, 7, "It recovers its log, or stops; `/ready` on the health port says when it is back.", True),
    # --- the cluster
    ErrorSpec("NODE_UNREACHABLE", "node {node} does not answer: {reason}", 503, 7,
              "The outcome is unknown. Check that the node runs and that its cluster address is reachable from here.", True),
    ErrorSpec("QUORUM_UNAVAILABLE", "the metadata quorum does not answer: {reason}", 503, 7,
              "Records are served as before; changes of leaders and members wait. Check that a majority of the etcd members run.", True),
    ErrorSpec("ETCD_UNUSABLE", "cannot run an etcd: {reason}. Install it with: {command}", 501, 7,
              "Run the command of the message, or name the endpoints of an etcd that runs already in `quorum_endpoints`."),
    ErrorSpec("NOT_LEADER", "not leader: {reason}", 421, 7,
              "Ask the node at that address, or again where none is named; `braid cluster leaders` shows who leads what.", True),
    ErrorSpec("COORDINATOR_MOVED", "not leader: another node coordinates since this was asked, and the outcome is unknown", 503, 7,
              "Ask again: what was done already is not done twice where the request names its producer, writer or transaction.", True),
    # --- replication
    ErrorSpec("LEADER_MOVED", "not leader: another node leads {topic}/{partition} since this was sent, and the outcome is unknown", 503, 7,
              "Send it again: an idempotent producer's records are stored once all the same.", True),
    ErrorSpec("NOT_ENOUGH_REPLICAS", "{topic}/{partition} has {found} replicas in sync and needs {needed}", 503, 7,
              "Bring the missing nodes back, or lower `min_insync` with `braid cluster require`. What was sent meanwhile may be stored yet.", True),
    ErrorSpec("NODE_OUTDATED", "this node begins anew: the cluster went on without it for longer than its decisions are kept one by one", 503, 7,
              "Nothing is to be done: the node has got the state instead, and starts with it. `/ready` says when it is back.", True),
    ErrorSpec("REPLICA_DIVERGED", "{topic}/{partition}: the leader lacks records from offset {offset} on that were readable up to {watermark}", 500, 7,
              "Nothing was removed. A disk of the leader lost what it had promised to keep: restore it, or retire this replica by hand."),
    ErrorSpec("CLUSTER_REFUSED", "{node} and this node do not belong together: {reason}", 403, 6,
              "All nodes of a cluster have the same `cluster_id` and `join_token`, and each has a `node_id` of its own."),
    ErrorSpec("DISCOVERY_UNAVAILABLE", "cannot look for nodes in the local network: {reason}", 501, 7,
              "Install the extra: `pip install 'braidmq[cluster]'`. A network without multicast needs `peers` instead."),
    # --- the admin API
    ErrorSpec("NO_SUCH_PATH", "there is nothing at {path}", 404, 8, "`/api/v1/openapi.json` lists every path."),
    ErrorSpec("METHOD_NOT_ALLOWED", "{path} does not take {method}", 405, 8, "The header Allow names the methods it takes."),
    ErrorSpec("MEDIA_TYPE", "the body is {given}, not {expected}", 415, 8, "Say with Content-Type what the body is."),
    ErrorSpec("CROSS_SITE", "request refused: {reason}", 403, 6,
              "Browsers reach the admin API by a name in `admin_hosts`, and change things only from its own pages."),
    ErrorSpec("CONNECTION_NOT_FOUND", "connection not found: {id}", 404, 8, "It was closed already; the list shows those that are open."),
    ErrorSpec("LIVE_LIMIT", "there are already {limit} live streams", 503, 7, "Close some; each page that follows something has one.", True),
    ErrorSpec("INTERNAL", "internal error: {reason}", 500, 7, "This is a bug; the broker's log has the details under the same text."),
    # --- Spark
    ErrorSpec("JAVA_MISSING", "Spark needs Java 17 or newer: {found}. Install it with: {command}", 501, 7,
              "Run the command of the message, or set JAVA_HOME to a Java that is new enough. The broker itself needs none."),
    ErrorSpec("SPARK_UNAVAILABLE", "this needs the package {package}, which is not installed", 501, 7,
              "Install the extra: `pip install 'braidmq[spark]'`."),
    # --- configuration and command line
    ErrorSpec("CONFIG_UNKNOWN_KEY", "unknown setting `{key}` in {origin}{suggestion}", 400, 8, "`braid config show` lists every setting."),
    ErrorSpec("CONFIG_INVALID_VALUE", "setting `{key}` from {origin}: {reason}", 400, 8, "`braid config show` lists every setting with its kind."),
    ErrorSpec("CHILD_ENDED", "{what} ended with status {status}: {words}", 500, 7, "Its own last words say why."),
    ErrorSpec("CONFIG_UNREADABLE", "cannot read configuration {path}: {reason}", 400, 8, "The file must be TOML, or JSON with the ending .json."),
    # --- Spark
    ErrorSpec("RECORDS_LOST", "{count} records of {topic}/{partition} from offset {start} to before {end} cannot be read: {reason}", 410, 8,
              "Set `failOnDataLoss` to false to go on without them, or keep more: a longer retention, or `holdRetention`."),
    ErrorSpec("TOPIC_REPLACED", "topic {topic} was {what} while a query was reading it", 410, 8,
              "Begin with a new checkpoint, or set `failOnDataLoss` to false to go on with what there is now."),
    ErrorSpec("TABLE_NOT_FOLLOWED", "the table {table} cannot be followed: {reason}", 410, 8,
              "Begin with a new checkpoint, which reads the table as it is now."),
    # --- raised in the client
    ErrorSpec("UNREACHABLE", "no broker answers at {servers}: {reason}", 503, 7, "Check the address, and that `braid serve` runs there.", True),
    ErrorSpec("CONNECTION_LOST", "the connection to {server} broke: {reason}", 503, 7,
              "The outcome of requests in flight is unknown; idempotent producers retry by themselves.", True),
    ErrorSpec("TIMED_OUT", "{what} took longer than {seconds:g} s", 504, 7, "Raise the time-out, or look at the broker's load.", True),
    ErrorSpec("CLIENT_CLOSED", "the {what} is closed", 409, 8, "Open a new one."),
    ErrorSpec("UNEXPECTED_REPLY", "the server answered {reason}", 502, 8, "The peer does not speak this protocol, or another version of it."),
    ErrorSpec("BIND_REFUSED", "the server refused to bind {exchange} with {program}", 400, 8,
              "Fq says no more than that: the program makes no sense to the server, or the user may not read the exchange."),
    ErrorSpec("SERVER_ERROR", "{message}", 500, 7, "The server refused the request; its text says why."),
    ErrorSpec("INVALID_KEY", "invalid encryption key: {reason}", 400, 8, "Keys are 64 hexadecimal characters: `openssl rand -hex 32`."),
    ErrorSpec("DECRYPTION_FAILED", "cannot decrypt {topic}/{partition} offset {offset}", 400, 8,
              "The value was encrypted with another key, or not encrypted at all."),
)

ERRORS: Final[dict[str, ErrorSpec]] = {row.code: row for row in _ROWS}


class BraidError(Exception):
    """A fault that has a row in the table."""

    def __init__(self, code: str, **fields: object) -> None:
        self.spec = ERRORS[code]
        self.fields = fields
        super().__init__(self.spec.text.format_map(fields))

    @property
    def code(self) -> str:
        return self.spec.code

    @property
    def hint(self) -> str:
        return self.spec.hint

    @property
    def retriable(self) -> bool:
        return self.spec.retriable

    def __str__(self) -> str:
        return f"{self.spec.code}: {self.args[0]}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.spec.code, self.fields)

    @property
    def text(self) -> str:
        """The sentence without its code."""
        return str(self.args[0])

    @property
    def v126_text(self) -> str:
        """What the published FlyMQ clients get: no code, except where they look for one."""
        return self.text if self.spec.v126 is None else self.spec.v126.format_map(self.fields)

    @property
    def fq_text(self) -> str:
        """What an ERROR command of fq carries: the words that its published broker uses."""
        return self.text if self.spec.fq is None else self.spec.fq.format_map(self.fields)


def _rebuild(code: str, fields: dict[str, object]) -> BraidError:
    return BraidError(code, **fields)
