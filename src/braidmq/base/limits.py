"""Every limit of BraidMQ, with its unit and its reason.

Limits that an operator may want to move are settings (`config.py`) whose defaults or bounds come from here; the rest are
part of a format or a protocol. Each one has a test that goes over it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- FlyMQ frames
FRAME_PAYLOAD_BYTES_MAX: Final = 32 * MIB
"""The documented frame limit, inclusive. Also caps what a compressed payload may unpack to."""
REQUEST_LIST_ITEMS_MAX: Final = 100_000
"""Items of one list inside a request; a frame full of tiny ones would hold up every other connection for seconds."""
RECORD_BYTES_MAX: Final = FRAME_PAYLOAD_BYTES_MAX - 4 * KIB
"""Key and value together, or a whole batch: what fits a frame going in must fit one coming out."""
ERROR_TEXT_BYTES_MAX: Final = 4096
"""Longer error texts are cut, so that an error about a huge input is not huge itself."""

# --- BlipMQ frames
BLIPMQ_PAYLOAD_BYTES_MAX: Final = 1 * MIB
"""The documented limit of a message's payload; a setting may move it."""
BLIPMQ_FRAME_SPARE_BYTES: Final = 64 * KIB
"""What a frame may be longer than its payload: topic, identifiers and metadata."""
BLIPMQ_FRAME_BYTES_MIN: Final = 16
"""No envelope is shorter."""
BLIPMQ_SKIPPED_BYTES_MAX: Final = 16 * MIB
"""A frame over the limit is read past up to this size; a longer one ends the connection. Below 176 MiB, or the framings could
not be told apart by their first bytes."""
BLIPMQ_TEXT_CHARACTERS_MAX: Final = 255
"""Code points of a topic, a filter, a client_id and a message_id."""
BLIPMQ_LEVELS_MAX: Final = 128
"""Levels of a topic: matching walks them."""
BLIPMQ_METADATA_ENTRIES_MAX: Final = 64
BLIPMQ_METADATA_BYTES_MAX: Final = 16 * KIB
"""Keys and values of one frame together."""
BLIPMQ_METADATA_KEY_BYTES_MAX: Final = 64
BLIPMQ_VTABLES_KNOWN_MAX: Final = 256
"""Table layouts remembered for each kind of table; a peer uses a handful, a hostile one any number."""
BLIPMQ_DEDUP_REMEMBERED_MAX: Final = 1_000_000
"""Messages remembered so that a repeated one is not stored again; the oldest is forgotten first, whatever the window says."""
BLIPMQ_ERRORS_PER_S_MAX: Final = 100
"""A client that gets more Errors within a second is closed: it does not listen."""
BLIPMQ_REFUSALS_MAX: Final = 3
"""Frames without a key that a client may send before it is closed, where a key is asked for."""
FEDERATION_HOPS_MAX: Final = 8
"""Brokers that a message may have come through; a chain that is longer is a mistake, or a ring."""
FEDERATION_ORIGINS_REMEMBERED: Final = 100_000
"""Messages of other brokers that are known when they come again, by another way or after a break."""
BLIPMQ_EXPRESSION_CHARACTERS_MAX: Final = 1024
BLIPMQ_EXPRESSION_DEPTH_MAX: Final = 16
BLIPMQ_EXPRESSION_COMPARISONS_MAX: Final = 64
"""A filter expression is evaluated for every message of its topic."""

# --- names
TOPIC_NAME_BYTES_MAX: Final = 1020
"""What BlipMQ documents: 255 characters of up to four bytes. An fq exchange of any 127 bytes fits as well."""
GROUP_NAME_BYTES_MAX: Final = 1100
"""As for topics, and a word before it: the group of a BlipMQ client or an fq queue."""
PARTITIONS_MAX: Final = 10_000
"""A topic with more is a mistake in a request, not a design."""
TOPICS_MAX: Final = 1_000_000
"""Keeps a runaway client from filling the metadata with names."""

# --- consumer groups
GROUPS_MAX: Final = 1_000_000
"""Groups with offsets, one for each topic and name; all of them are held in memory."""
GROUPS_WITHOUT_OFFSETS_MAX: Final = 10_000
"""Groups remembered that never committed and have no member now; the one that was left first is forgotten first."""
GROUP_TRANSACTIONS_REMEMBERED: Final = 100_000
"""Transactions whose offsets are known to be applied, so that rolling one forward again changes nothing."""
GROUP_COMMIT_OFFSETS_MAX: Final = 100_000
"""Offsets that one command may move."""
GROUP_MEMBERS_MAX: Final = 1000
"""Members of one group that share its partitions."""
MEMBERS_MAX: Final = 100_000
"""Members of all groups together."""
MEMBER_TOPICS_MAX: Final = 1000
"""Topics that one member may name."""
GROUP_PARTITIONS_MAX: Final = 100_000
"""Partitions that one member may ask to share: each rebalance deals them out anew."""
SESSION_TIMEOUT_MS_MIN: Final = 100
SESSION_TIMEOUT_MS_MAX: Final = 300_000
"""A member that is silent for longer than it announced is dead; nobody reads its partitions until then."""
SESSION_TIMEOUT_MS_DEFAULT: Final = 10_000
"""What a time-out of 0 means."""
MEMBER_RECONNECT_SECONDS: Final = 2.0
"""How long a member may live on when its connection is gone, so that a broken connection costs no rebalance."""
REBALANCE_SECONDS_MAX: Final = 10.0
"""Longest wait for the members that have not rejoined; their partitions go to the others then."""
MEMBERS_CHECK_SECONDS: Final = 0.25
"""How often the broker looks for members that died."""

# --- batches and segments
BATCH_BYTES_MAX: Final = 64 * MIB
"""A batch position is 32 bits and a batch is held in memory once: one full frame fits twice over."""
BATCH_RECORDS_MAX: Final = 1_000_000
"""Bounds the columns of one batch to 20 MB."""
FLUSH_BYTES_TARGET: Final = 8 * MIB
"""A partition's rows are sealed into a batch when they pass this within one turn of the loop."""
SEGMENT_BYTES_MIN: Final = 4 * KIB
SEGMENT_BYTES_MAX: Final = 2 * GIB
"""A segment is mapped whole; more files are cheaper than larger maps."""
RETENTION_HOLD_BYTES_DEFAULT: Final = 10 * GIB
"""A partition that a group holds back from retention grows to this; a group that is forgotten must not fill the disk."""
INDEX_INTERVAL_BYTES: Final = 4 * KIB
"""One index entry for at least so many bytes of log: 0.6 % of the data, at most a page of headers to walk."""
PRODUCERS_PER_PARTITION_MAX: Final = 10_000
"""Idempotent producers remembered a partition; the one silent for longest is forgotten first."""
PRODUCER_BATCHES_KEPT: Final = 5
"""A producer has at most this many batches in flight, so a duplicate is among its last five."""

# --- reading
FETCH_BYTES_TARGET: Final = 8 * MIB
"""A FETCH answer stops after so many payload bytes, once it holds a record."""
FETCH_RECORDS_DEFAULT: Final = 10
"""What `max_messages` of zero or less means."""
FILTER_SCAN_SECONDS_MAX: Final = 1.0
"""How long a filtered FETCH may search before it answers with what it has."""
LONG_POLL_SECONDS_MAX: Final = 30.0
"""Longest wait of FETCH_BATCHES; a client asks again."""

DECODED_BYTES_MAX: Final = 32 * MIB
"""Compressed and encrypted batches kept in their plain form for the next reader; a single one may be larger."""
DECODED_BYTES_AT_ONCE_MAX: Final = 256 * KIB
"""Larger compressed or encrypted batches are decoded beside the loop; one read decodes no more than this on it."""

# --- connections
RECEIVE_BUFFER_BYTES: Final = 256 * KIB
"""One buffer a port, that all of its plain connections receive into."""
REQUEST_BACKLOG_BYTES_MAX: Final = 1 * MIB
"""Unparsed bytes a connection may hold while an earlier request runs; past it, its socket is not read."""
WRITE_BUFFER_BYTES_HIGH: Final = 4 * MIB
"""Unsent bytes at which a connection's requests wait."""
WRITE_BUFFER_BYTES_LOW: Final = 1 * MIB
SESSION_ROUTES_MAX: Final = 10_000
"""Topics that one connection may write to without being asked again; past it the connection is asked anew."""
SESSION_COMMITS_NOTED_MAX: Final = 10_000
"""Groups of which a connection remembers that the audit trail knows of its commits; past it they are noted anew."""
LISTEN_BACKLOG: Final = 4096
"""asyncio's default of 100 makes a burst of connects time out."""
STOP_SECONDS_MAX: Final = 5.0
"""A stop ends within this: half of it for running requests, then connections are closed and the log is synced."""

# --- disk
SYNC_FILES_ONE_BY_ONE_MAX: Final = 16
"""Past so many dirty files one syncfs is cheaper than fdatasync for each."""
OPEN_FILES_RESERVED: Final = 256
"""Descriptors kept free for sockets and maps when the log decides how many files to keep open."""

# --- encryption at rest
ENCRYPTION_KEYS_MAX: Final = 100
"""Keys a broker may hold: more rotations than retention keeps data for."""
ENCRYPTION_KEY_FILE_BYTES_MAX: Final = 64 * KIB
"""A larger file is something else than a list of keys."""

# --- users and rights
USER_NAME_BYTES_MAX: Final = 255
"""Longer than any address or certificate name that people log in with."""
ROLE_NAME_BYTES_MAX: Final = 255
"""A published answer gives the length of a role's name one byte."""
PASSWORD_BYTES_MAX: Final = 1024
"""Longer than any passphrase; keeps a hostile one from costing time before it is refused."""
ROLE_DESCRIPTION_BYTES_MAX: Final = 1024
"""A sentence or two; the list of roles is one answer."""
USERS_MAX: Final = 100_000
"""Users are held in memory with their rights."""
ROLES_MAX: Final = 1000
"""Custom roles; more describe persons, not roles."""
ROLES_PER_USER_MAX: Final = 100
"""Each decision walks them."""
ACLS_MAX: Final = 100_000
"""ACLs of single topics, found by name."""
ACL_PATTERNS_MAX: Final = 1000
"""ACLs of patterns; a topic that is seen for the first time is compared with each."""
ACL_NAMES_MAX: Final = 1000
"""Users, and roles, that one ACL may name; a role stands for many users."""
ACL_CACHE_TOPICS_MAX: Final = 10_000
"""Topics whose ACL is remembered after it was looked up among the patterns."""
THROTTLE_ENTRIES_MAX: Final = 100_000
"""Users and addresses whose failed logins are remembered; the one silent for longest is forgotten first."""
THROTTLE_SECONDS_MAX: Final = 30.0
"""Longest wait before the next guess, and longest that a login waits before it is refused."""
LOGINS_AT_ONCE_MAX: Final = 2
"""Passwords hashed at a time: each takes a core and 32 MiB for a tenth of a second."""
QUOTA_BURST_SECONDS: Final = 1.0
"""A user who was silent may spend so much of the quota at once."""
QUOTA_USERS_MAX: Final = 100_000
"""Users and anonymous addresses whose spending is remembered; those who owe nothing are forgotten first."""

# --- audit trail
AUDIT_PENDING_EVENTS_MAX: Final = 10_000
"""Events on their way to the disk; past it they are counted and dropped, so that requests never wait for the trail."""
AUDIT_FIELD_CHARACTERS_MAX: Final = 1024
"""Longer texts in an event are cut."""
AUDIT_DETAILS_MAX: Final = 32
"""Details of one event; what is more is left out."""
AUDIT_SEGMENT_BYTES: Final = 4 * MIB
"""What retention lets go at a time, and what a query by time can step over."""
AUDIT_PAGE_EVENTS_DEFAULT: Final = 100
"""What a limit of 0 means."""
AUDIT_PAGE_BYTES_MAX: Final = 8 * MIB
"""A page ends after so many bytes of events; the rest is on the next one."""
AUDIT_EXPORT_BYTES_MAX: Final = 31 * MIB
"""An exported document has to fit a frame."""

# --- schemas
SCHEMA_NAME_BYTES_MAX: Final = 255
"""A property of a topic and an answer of one request hold it; nobody types a longer one."""
SCHEMA_DEFINITION_BYTES_MAX: Final = 256 * KIB
"""The largest published schemas of whole industries are smaller."""
SCHEMA_DEPTH_MAX: Final = 100
"""Levels that a definition, or a message that is checked, may nest; parsers recurse, and so do people who read it."""
SCHEMA_MESSAGE_BYTES_MAX: Final = 8 * MIB
"""A message that is checked is unpacked in memory, where it takes up to thirty times its size."""
SCHEMA_LIGHT_BYTES_MAX: Final = 16 * KIB
"""Up to this size a message is checked without weighing it first, and is walked through to say where a fault is."""
SCHEMA_EVALUATIONS_MAX: Final = 100_000
"""Keyword entries that a schema may apply to one value of a message, its references followed."""
SCHEMA_WORK_MAX: Final = 200_000_000
"""Values of a message times the keyword entries that may apply to each: some seconds."""
SCHEMA_LISTED_WORK_MAX: Final = 100_000
"""Up to so much work all errors of a JSON message are listed; past it the first at most, since listing is slow."""
SCHEMA_ERRORS_MAX: Final = 20
"""Errors told about one message, and reasons told about one comparison."""
SCHEMA_REASON_CHARS_MAX: Final = 500
"""Longer reasons are cut: a definition can put a page into one."""
SCHEMA_VERSIONS_MAX: Final = 1000
"""Versions kept of one schema; a transitive check compares with every one."""
SCHEMA_NAMES_MAX: Final = 100_000
"""Names ever used: a deleted one is remembered, so that its version numbers are not used again."""
SCHEMA_TOTAL_BYTES_MAX: Final = 64 * MIB
"""All definitions together: they are held in memory and written with each snapshot."""
SCHEMA_COMPILED_MAX: Final = 1000
"""Compiled schemas kept for the next message; the one used longest ago goes first."""
SCHEMA_LOOP_RECORDS_MAX: Final = 200
"""Records of one batch that are checked on the loop; more of them, or larger ones, are checked beside it."""

# --- transactions, delayed messages, dead letters
TRANSACTION_RECORDS_MAX: Final = 100_000
"""Records of one transaction: its decision names each of them, and is one record itself."""
TRANSACTION_BYTES_MAX: Final = 64 * MIB
"""Bytes of one transaction: they are in memory, a few times over, while they go into their partitions together."""
TRANSACTIONS_OPEN_MAX: Final = 10_000
"""Transactions begun and not ended; a client that forgets them must not fill the memory."""
TRANSACTION_TIMEOUT_S_MAX: Final = 3600.0
"""Longest time-out that a client may ask for: staged records are kept as long as the oldest open transaction."""
TRANSACTIONAL_ID_BYTES_MAX: Final = 255
"""It names a producer; thousands of them are remembered."""
TRANSACTIONAL_IDS_REMEMBERED: Final = 10_000
"""Transactional ids whose newest producer is known; the one taken over longest ago is forgotten first."""
TRANSACTIONS_REMEMBERED: Final = 10_000
"""Ended transactions whose outcome can still be told."""
STAGE_EPOCH_BYTES_MAX: Final = 1 * GIB
"""Bytes that a writer stages for one epoch, of each task its largest attempt: publishing writes all of them in one turn, so that
readers see them at one moment."""
STAGES_BYTES_MAX: Final = 16 * GIB
"""Staged bytes of all writers; those of one that does not come back stay until `stage_timeout_s`."""
STAGE_BATCHES_MAX: Final = 100_000
"""Batches staged for one epoch: each of them is a command in the journal and a row in memory."""
STAGE_WRITERS_REMEMBERED: Final = 10_000
"""Writers whose last published epoch is known, so that it is not published again; the one silent for longest is forgotten first."""
STAGE_WRITER_BYTES_MAX: Final = 255
"""It names a writer; thousands of them are remembered."""
STAGE_PLANS_REMEMBERED: Final = 10_000
"""Groups of which it is known where they will be when their epoch is published; the one planned longest ago is forgotten first."""
TTL_MS_MAX: Final = 100 * 365 * 24 * 3600 * 1000
"""A longer time to live is no longer than this: a hundred years and a day in milliseconds still fit everywhere."""
DELAYED_MESSAGES_MAX: Final = 10_000_000
"""Delayed messages waiting: about 80 bytes of memory each."""
DELIVERY_RECORDS_MAX: Final = 1000
"""Records that one decision moves for the broker itself (delayed, dead, replayed): bounds what is in memory at once."""
DELIVERY_BYTES_TARGET: Final = 8 * MIB
"""And their bytes, once there is one."""
FAILURES_REMEMBERED: Final = 100_000
"""Records that failed and whose attempts are counted; the one that failed longest ago is forgotten first."""
REFUSALS_REMEMBERED: Final = 10_000
"""Producers whose newest batch had records that did not fit; the one that was refused longest ago is forgotten first."""
EXPIRED_SCAN_BYTES_MAX: Final = 8 * MIB
"""How much of the log one read may pass over because it is expired, before others get their turn."""

# --- backups
BACKUPS_MAX: Final = 4
"""Backups that are read at the same time; each holds on to files that retention would remove."""
BACKUP_IDLE_SECONDS_MAX: Final = 600.0
"""How long a backup is kept of which nothing is read."""
BACKUP_PIECE_BYTES_MAX: Final = 4 * MIB
"""Read of a backup at a time."""

# --- fq
FQ_NAME_BYTES_MAX: Final = 127
"""User, queue, exchange, route and sender: what the published broker takes."""
FQ_QUEUE_DETAIL_BYTES_MAX: Final = 1023
"""Name and type of a queue, with the NUL between them."""
FQ_PASSWORD_BYTES_MAX: Final = 10_240
"""What the published broker takes."""
FQ_KEY_BYTES_MAX: Final = 127
"""The key that joins a data connection to its command connection; clients have room for so much."""
FQ_HOPS_MAX: Final = 32
"""Brokers that a message names on its way; past it the oldest falls off."""
FQ_PROGRAM_BYTES_MAX: Final = 1024
"""A route program: eight times what the published broker takes, and it runs for every message."""
FQ_PROGRAM_DEPTH_MAX: Final = 32
"""Levels of parentheses in a route program."""
FQ_PROGRAM_ARGUMENTS_MAX: Final = 16
"""Arguments of one function in a route program."""
FQ_QUEUES_KEPT_MAX: Final = 100_000
"""Permanent queues: each is in memory and in every snapshot."""
FQ_QUEUE_BINDINGS_MAX: Final = 10_000
"""Bindings of one queue."""
FQ_EXCHANGES_MAX: Final = 100_000
"""Exchanges whose figures are kept; past it one that nothing is bound to is forgotten."""
FQ_CLAIMS_MAX: Final = 10_000
"""Runs of messages in one partition of which a queue has not said yet whether it takes them; past it nobody waits for that."""
FQ_LOOK_AHEAD_RECORDS: Final = 16_384
"""Messages that a disk queue chooses in advance while it catches up."""
FQ_HANDSHAKE_SECONDS_MAX: Final = 30.0
"""Time in which a connection says what it is, and a client who it is; a published client opens both connections before it does."""
FQ_HTTP_HEAD_BYTES_MAX: Final = 16 * KIB
"""Request line and headers of one HTTP request."""
FQ_WEB_FILE_BYTES_MAX: Final = 16 * MIB
"""A file that an fq port answers HTTP with: it is read as a whole."""
FQ_HTTP_HEADERS_MAX: Final = 100
"""Headers of one HTTP request."""

# --- push
PUSH_CHUNK_BYTES: Final = 256 * KIB
"""How much of the log a subscriber is handed at a time: enough to make the cost of a write small, little enough to be fair."""
PUSH_LOOK_BYTES_MAX: Final = 4 * MIB
"""How much of the log a filter passes over before others get their turn."""
PUSH_CHUNKS_BYTES_MAX: Final = 32 * MIB
"""Chunks kept for the next subscriber that comes to the same place, of all partitions together."""
PUSH_CHUNK_EXPIRING_MS_MAX: Final = 50
"""How long a chunk is used again whose records may expire meanwhile."""
AWAY_LANE_BYTES_MAX: Final = 8 * MIB
"""Records of BlipMQ and fq that wait here for the leader of one partition, on another node; past it their publishers wait."""
AWAY_BYTES_MAX: Final = 128 * MIB
"""The same, of all partitions together."""
AWAY_READ_BYTES_MAX: Final = 1 * MIB
"""What a node keeps of one partition that it has no replica of and somebody here is pushed: read ahead, and read again."""
AWAY_READS_BYTES_MAX: Final = 64 * MIB
"""The same, of all such partitions together."""
AWAY_QUESTIONS_MAX: Final = 64
"""Questions of one node that wait at another one for something to come, far below `CLUSTER_CALLS_MAX`; further ones wait here."""
AWAY_QUESTION_PARTITIONS_MAX: Final = 64
"""Partitions that one such question is about; ten times as many where half of the questions wait already."""
DURABLE_SUBSCRIBERS_MAX: Final = 100_000
"""Subscribers that outlive their connections; each has a place in the memory of the broker and in every snapshot."""
SUBSCRIBER_FILTERS_MAX: Final = 10_000
"""Filters of one subscriber; each is tried for every topic that comes."""

# --- HTTP: the admin API, metrics and health
HTTP_CONNECTIONS_MAX: Final = 512
"""Connections of one HTTP port, live tails included; more are answered 503."""
HTTP_BODY_BYTES_MAX: Final = 8 * MIB
"""Body of one request of the admin API; larger records go by the protocols that are made for them."""
FORM_FIELDS_MAX: Final = 200
"""Fields of one form of the web console."""
MASK_FIELDS_CHARACTERS_MAX: Final = 4096
"""The list of fields that a topic masks."""
GATE_CALLS_AT_ONCE_MAX: Final = 8
"""Requests of the admin API that the broker's loop works on at a time; the rest wait in the HTTP thread."""
GATE_SECONDS_MAX: Final = 60.0
"""Time in which the broker's loop has to answer the HTTP thread."""
PAGE_ITEMS_MAX: Final = 10_000
"""Items of one answer of the admin API; a cursor leads to the next ones."""
ADMIN_SESSIONS_MAX: Final = 10_000
"""Logins of the web console that are remembered; past it the one that was used longest ago has to log in again."""
ADMIN_SESSION_IDLE_SECONDS_MAX: Final = 8 * 3600.0
"""Silence after which a login of the web console is forgotten."""
METRIC_TOPICS_MAX: Final = 2000
"""Topics with metrics of their own, the largest; every one makes each scrape larger for ever."""
METRIC_GROUPS_MAX: Final = 2000
"""Groups with metrics of their own, those that are furthest behind."""
LIVE_STREAMS_MAX: Final = 64
"""Live tails and live figures at a time: each makes the broker's loop look again and again."""
REQUEST_ID_CHARACTERS_MAX: Final = 128
"""A request id that a caller brings along; a longer one is replaced."""

# --- the cluster
QUORUM_CHANGES_KEPT: Final = 10_000
"""Changes of the metadata quorum of one machine that a watcher may have missed and still gets one by one."""
QUORUM_ANSWER_BYTES_MAX: Final = 16 * MIB
"""One answer of etcd: thousands of times what a cluster keeps there."""
CLUSTER_HELLO_BYTES_MAX: Final = 4 * KIB
"""A frame of a node that has not yet proved that it belongs to the cluster."""
CLUSTER_HELLO_SECONDS_MAX: Final = 10.0
"""Time in which a node proves it."""
CLUSTER_GREETINGS_MAX: Final = 64
"""Connections that have not yet proved it, at a time; further ones are closed."""
CLUSTER_CALLS_MAX: Final = 1024
"""Calls of one node that are answered at a time; past it, its connection is not read."""
CLUSTER_TOKEN_CHARACTERS_MIN: Final = 16
"""A join token that is shorter can be guessed from what nodes say to each other."""
GOSSIP_PACKET_BYTES_MAX: Final = 8 * KIB
"""One packet of gossip, with names as long as they may be; usual ones pass every network in one piece."""
GOSSIP_RUMOURS_BYTES_MAX: Final = 1000
"""What a packet of gossip tells, where it tells of more than one node."""
GOSSIP_MEMBERS_MAX: Final = 1000
"""Nodes that gossip knows; a cluster of that size has other worries."""
GOSSIP_RELAYS_MAX: Final = 1000
"""Pings that a node sends for others at a time."""

# --- pipelines
PIPELINES_MAX: Final = 1000
"""Pipelines that the broker knows; each is in memory and in every snapshot."""
PIPELINE_DEFINITION_BYTES_MAX: Final = 256 * KIB
"""The text of one pipeline: it is one command of the journal."""
PIPELINE_RUNS_KEPT: Final = 50
"""Runs of a pipeline that are remembered; the oldest is forgotten first."""
PIPELINE_EVENTS_KEPT: Final = 200
"""Events of a pipeline that are remembered; the oldest is forgotten first."""
PIPELINE_REPLAYS_KEPT: Final = 50
"""Replays of a pipeline that are remembered; of those that have ended the oldest is forgotten first."""
PIPELINE_REPLAYS_WAITING_MAX: Final = 10
"""Replays that wait for a run of a pipeline: whoever asks for more has not seen that nobody takes them."""
PIPELINE_PROGRESS_KEPT: Final = 600
"""Progress reports of a pipeline that are kept, in memory alone: ten minutes at one a second."""
PIPELINE_REPORT_BYTES_MAX: Final = 16 * KIB
"""One progress report, or the text of one event: hundreds of them are kept."""
