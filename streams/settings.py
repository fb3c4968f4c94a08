"""Every knob: its default, its unit (last in the name) and its reason.

Each field is read from the environment variable of the same name, `TURNSTREAM_PARTITIONS` for
`partitions`. An empty variable counts as unset; an unknown one is refused, since a misspelt
knob that silently keeps its default is found in production.

Invariant: a `Settings` that exists is usable as it stands; what contradicts itself is refused
with the variable's name.
"""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from streams import settings_checks
from streams.errors import BadSetting

PREFIX = settings_checks.PREFIX
FRAMING_BYTES = 4096
"""What the broker counts beside key and value: headers of batch and record, compression."""
ENVELOPE_BYTES = 65_536
"""What a dead letter or a table row adds to the event it holds."""
FOR_EVER = -1
KAFKA_TRACE_SHARE = 0.01
KAFKA = settings_checks.KAFKA
ACCEPT = settings_checks.ACCEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The knobs of every service and command."""

    log: str = KAFKA
    """`kafka`, or the path of a file: the embedded log, which needs no broker. Unset: Kafka where
    TURNSTREAM_BOOTSTRAP_SERVERS is set and for services, else the file that `up` made here."""
    bootstrap_servers: str = "127.0.0.1:9092"
    """Brokers to ask first, `host:port` with commas between; one that answers is enough."""
    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, as the broker's listener has it."""
    sasl_mechanism: str = "PLAIN"
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; counts with a SASL protocol only."""
    sasl_username: str | None = None
    """The user for SASL."""
    sasl_password: str | None = dataclasses.field(default=None, repr=False)
    """The user's password; never printed."""
    ssl_cafile: str | None = None
    """PEM file of the authority that signed the brokers; without it, the system's."""
    ssl_certfile: str | None = None
    """PEM file of our own certificate, where brokers ask for one."""
    ssl_keyfile: str | None = None
    """PEM file of its key."""

    topic_prefix: str = "turnstream"
    """Topics are `<prefix>.turns` and so on; another prefix is another, separate log."""
    partitions: int = 16
    """Of every topic but trained and control: the most workers that can share the work.
    It never changes, since a session would move to another partition."""
    replication: int | None = None
    """Copies of every topic; unset: 3, or as many as there are brokers."""
    min_insync: int | None = None
    """Copies that must hold a message before it counts as durable; unset: 2 of 3, else 1."""
    retention_turns_hours: float = 168
    """At least hard limit + key lifetime: a session is read back from here. -1: for ever."""
    retention_samples_hours: float = 168
    """A trainer that stands still longer than this loses samples."""
    retention_traces_hours: float = 168
    """Time the sinks have to fetch a trace."""
    retention_dead_letters_hours: float = 720
    """Time to look at a refused event and replay it."""
    retention_trained_hours: float = 720
    """Time the records of optimizer steps are kept."""
    expected_turns_per_s: float = 50.0
    """For the disk estimate of `turnstream topics` alone."""
    expected_turn_bytes: int = 20_480
    """The same: of a turn and its share of what opens, rewards and ends a session, before
    compression."""

    message_bytes_max: int = 8_388_608
    """Of one event, key and value before compression; a larger one is refused at publish."""
    compression: str = "zstd"
    """none, gzip, snappy, lz4 or zstd; zstd takes a third off token ids."""
    producer_batch_bytes: int = 1_048_576
    """Sent in one go to a partition; 16 KiB, the usual default, halves the throughput."""
    producer_linger_ms: int = 10
    """Waited for a batch to fill; little beside a model call, and it doubles a busy worker."""
    fetch_wait_ms: int = 100
    """A drained partition holds back the others of its broker for this long."""
    request_timeout_s: float = 10.0
    """For every question to a broker, retries included."""
    publish_timeout_s: float = 30.0
    """Until an event must be acknowledged; covers the restart of a broker."""
    metadata_max_age_s: float = 10.0
    """Until topics and leaders are asked for again; a longer one leaves a worker that joined
    before the topics were there without work."""
    away_after_s: float = 5.0
    """Silence of the broker before a reader says so."""

    blob_url: str | None = None
    """A folder or fsspec URL for channels too large for the log; unset: they stay in the event."""
    blob_threshold_bytes: int = 65_536
    """A channel above this goes to the blobs."""
    blob_timeout_s: float = 30.0
    """For one blob, written or read."""

    idle_limit_s: float = 3_600.0
    """A session without an event for this long expires; longer than the longest tool call."""
    hard_limit_s: float = 86_400.0
    """A session older than this expires, and a turn older than this is refused."""
    reward_grace_s: float = 3_600.0
    """An ended session waits this long for a pending reward."""
    key_lifetime_s: float = 86_400.0
    """A session key is good for this long after it was minted."""
    marker_retention_s: float = 172_800.0
    """How long a closed session is remembered: until then a late reward still finds it."""

    profile: str = "seed"
    """The rules for sessions that name none."""
    trace_share: float | None = None
    """Part of the sessions that leave a trace; failures and eval sessions always do. Unset: 1 on a
    file, 0.01 on Kafka."""
    foreign_partitions: str = "refuse"
    """Events that are not on the partition of their session's key: `refuse` makes them dead
    letters, `accept` takes them where they are, for logs that have open sessions of that kind."""
    processor_commit_interval_s: float = 1.0
    """What is worked on twice after a crash, at most."""
    processor_session_timeout_s: float = 10.0
    """Silence after which a worker's partitions go to others."""
    processor_heartbeat_interval_s: float = 1.0
    """So late does a worker hear that the group changes; at most a third of the session timeout."""
    processor_rebalance_timeout_s: float = 30.0
    """Time a worker has to finish and rejoin when the group changes."""
    processor_drain_timeout_s: float = 5.0
    """Time for events in flight when partitions are given up."""
    processor_buffer_events: int = 512
    """Read ahead per worker; it counts events, so lower it where events are megabytes."""
    processor_in_flight_bytes_max: int = 67_108_864
    """Sent and not acknowledged, per worker."""
    processor_stuck_after_s: float = 4.0
    """Without an event although the log has some: the worker reads the place again."""
    processor_idle_exit_s: float = 15.0
    """Without topics or partitions although there should be some: the worker exits."""
    processor_sweep_interval_s: float = 5.0
    """Between looks for sessions that have expired."""
    gateway_host: str = "127.0.0.1"
    """Where agents reach the gateway; loopback, since it carries keys in the clear."""
    gateway_port: int = 8080
    """0 takes a free one; one in use is asked for again for some seconds."""
    gateway_url: str | None = None
    """How agents reach it from outside, in base URLs that are handed out; unset: host and port."""
    gateway_secret: str | None = dataclasses.field(default=None, repr=False)
    """Signs keys and ids, the same for all gateways; a line each, the first mints. Needed on
    Kafka; unset: a file beside the embedded log."""
    gateway_control_key: str | None = dataclasses.field(default=None, repr=False)
    """Opens the control API; unset: derived from the secret."""
    gateway_model: str = "turnstream"
    """The name in the list of models; calls may name any other."""
    gateway_body_bytes_max: int = 33_554_432
    """Of one request; text beyond the window is refused anyway, images are left out of it."""
    gateway_session_body_bytes_max: int = 67_108_864
    """Of all requests of one session under way, unpacked; one more is answered 429. Two of the
    largest, or a hundred with full windows."""
    gateway_total_body_bytes_max: int = 536_870_912
    """Of all requests under way; one more is answered 503. Their text stays in memory until the
    turn is recorded."""
    gateway_body_timeout_s: float = 60.0
    """From a request's head to the end of its body, then 408; the largest needs 0.6 MB/s."""
    gateway_messages_max: int = 4_096
    """In one request, then 413. One that was not recorded here takes a third of a
    millisecond to render; a window of 131,072 tokens has 32 for each."""
    gateway_json_objects_max: int = 20_000
    """In one request, then 413, before it is decoded: messages, parts, tools and what is nested in
    them; 300 large tools have half of it."""
    gateway_json_values_max: int = 262_144
    """In one request, the same, counted by the commas and brackets of its text: two for each token
    of the window."""
    gateway_session_calls_max: int = 64
    """Calls of one session under way, also those that wait; one more is answered 429. Agents start
    a handful of sub-agents."""
    gateway_connections_max: int = 4_096
    """At a time, 30 KB each; a new one replaces the oldest without a request. If all have one, it
    is answered 503. Fewer where the system allows fewer open files; without room for 64 the
    gateway does not start."""
    gateway_header_timeout_s: float = 10.0
    """From a request's first byte, or a connection's begin, to the end of the head, and from an
    answer to the end of a body that came too late for it; then it is closed."""
    gateway_idle_timeout_s: float = 300.0
    """Between two requests of a connection, or while an answer is not read, then it is closed;
    longer than clients and proxies keep theirs (Caddy: 120), or they send into one that closes."""
    gateway_sessions_held: int = 10_000
    """In memory; the others are read back from the log when they are used again."""
    gateway_sessions_open_max: int | None = None
    """Open at a time; one more is answered 429 until another is over. Unset: no limit."""
    gateway_read_back_bytes_max: int = 1_073_741_824
    """Read for one session that comes back, turns of others between its own included: 4 s, and
    hours of a busy partition. A session that needs more is refused, never begun anew."""
    gateway_concurrency: int = 256
    """Model calls at a time; sessions that wait take turns."""
    gateway_turns_max: int = 20_000
    """Calls of a session that sets no budget of its own."""
    gateway_context_tokens: int = 131_072
    """The model's window, prompt and answer together. A prompt beyond it is refused, so that
    clients compact; one beyond a session's own budget is answered as `length`."""
    gateway_max_new_tokens: int = 4_096
    """Of an answer, where the client does not say."""
    gateway_keep_alive_s: float = 15.0
    """Silence in a stream before an event is sent that adds nothing; clients give up at 300."""
    gateway_retry_after_s: int = 1
    """Told to clients that are to try again."""
    gateway_pause_wait_s: float = 240.0
    """For a call while its run is paused for new weights, then it is to try again; clients whose
    answer comes in one piece give up at 300."""
    gateway_weight_version: int | None = None
    """Of the weights that engines start with, before the first update is declared; for engines that
    do not report it. Unset: not known."""
    gateway_raw_prompt_bytes_max: int = 65_536
    """Of a prompt that begins a conversation, kept as text beside its turn, so that a changed
    template is found (`inspect --tokenizer`); longer ones are left out. 0: all are."""
    gateway_near_miss_folder: str | None = None
    """For a file with the answers that came back so changed that they were taken for another
    message, beside what was recorded: text of conversations. Unset: only the fields are named."""
    gateway_routed_experts: bool = False
    """`true` asks the engine which experts computed each token and records it as a channel; with
    many layers that is kilobytes a token."""
    gateway_drain_timeout_s: float = 30.0
    """Time for calls under way when the gateway stops."""
    admission_lag_max: int | None = None
    """New sessions are refused while the trainer has more records of the samples topic to read;
    more than the samples of a few batches. Unset: none are refused."""
    trainer_group: str = "{topic_prefix}-trainer-{run_id}"
    """The trainer's consumer group, with its run in it: trainers of different runs must not share
    one, or each would pass over what the other needs. Admission looks at its lag."""
    sinks: str = ""
    """What `turnstream up` runs beside it, with commas between: `jsonl`, `trackio`."""
    sink_jsonl_folder: str | None = None
    """Where traces go as JSON lines; unset: `traces` beside the embedded log, or right here."""
    sink_jsonl_file_bytes: int = 67_108_864
    """Of one file; its lines gather in memory, so that it appears whole."""
    sink_jsonl_file_s: float = 30.0
    """A file appears so long after its first line at the latest."""
    sink_trackio_folder: str | None = None
    """Where trackio keeps its projects; unset: where it would by itself."""
    sink_trackio_project: str = "turnstream"
    """The project's name on trackio's page."""
    sink_trackio_traces: int = 0
    """Shown of one step and split at most, branches counted; 0 or less: none."""
    sink_trackio_hold_s: float = 20.0
    """Without a session of a step for so long it is taken for whole, and the choice is made."""
    engine_api_key: str | None = dataclasses.field(default=None, repr=False)
    """What SGLang or vLLM was started with as --api-key, sent as a Bearer token; never printed."""
    metrics_host: str = "127.0.0.1"
    """Health and metrics of processor, sinks and gateway answer here, never on the agents' port;
    loopback, since they are not protected and name runs and groups."""
    metrics_port: int = 9464
    """0 takes a free one, as does a service that finds another there; it prints its address."""
    dump_folder: str | None = None
    """Where SIGUSR1 and the stall watchdog write what a service's tasks wait for; one that cannot
    be used ends the service at its start. Unset: the system's folder for temporary files."""
    stall_after_s: float = 0.0
    """A service that has something to do and makes no progress for this long writes a task dump,
    and again after as long. 0: it never does."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, by the name of the variable."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            least = settings_checks.least(field.name)
            if field.name.startswith("retention_") and value == FOR_EVER:
                continue
            if not math.isfinite(value) or value < least:
                settings_checks.refuse(field.name, value, f"give a number from {least:g}")
        settings_checks.check_words(self)
        settings_checks.check_pairs(self)

    @property
    def record_bytes_max(self) -> int:
        """Of a record that holds a whole event: a dead letter, a row of the table, a sample."""
        return self.message_bytes_max + ENVELOPE_BYTES

    @property
    def traced_share(self) -> float:
        """`trace_share`, else what is usual on this kind of log."""
        if self.trace_share is not None:
            return self.trace_share
        return KAFKA_TRACE_SHARE if self.log == KAFKA else 1.0

    @property
    def turns_topic(self) -> str:
        """Events, keyed by session."""
        return f"{self.topic_prefix}.turns"

    @property
    def samples_topic(self) -> str:
        """Samples, revisions and outcomes, keyed by group, else by session."""
        return f"{self.topic_prefix}.samples"

    @property
    def traces_topic(self) -> str:
        """Readable sessions, keyed by session."""
        return f"{self.topic_prefix}.traces"

    @property
    def dead_letters_topic(self) -> str:
        """Refused events, keyed by topic/partition/offset."""
        return f"{self.topic_prefix}.dead-letters"

    @property
    def trained_topic(self) -> str:
        """Optimizer steps, keyed by run."""
        return f"{self.topic_prefix}.trained"

    @property
    def control_topic(self) -> str:
        """Weight updates, keyed by run."""
        return f"{self.topic_prefix}.control"

    def trainer_group_of(self, run_id: str | None) -> str:
        """The trainer's consumer group for a run; without a run it is that of run `none`."""
        pattern = self.trainer_group.replace("{topic_prefix}", self.topic_prefix)
        return pattern.replace("{run_id}", run_id or "none")

    @property
    def processor_id(self) -> str:
        """The processor's app id, which is also its consumer group."""
        return f"{self.topic_prefix}-processor"

    @property
    def table_name(self) -> str:
        """The processor's one table."""
        return "rows"

    @property
    def changelog_topic(self) -> str:
        """The table's changelog; the rule for the name is Faust's."""
        return f"{self.processor_id}-{self.table_name}-changelog"


def settings_from(environ: Mapping[str, str]) -> Settings:
    """The settings that a set of environment variables asks for."""
    kinds = typing.get_type_hints(Settings)
    values: dict[str, object] = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        if name not in kinds:
            raise BadSetting(f"{variable}: no such setting")
        if environ[variable] != "":
            values[name] = _read(name, environ[variable], kinds[name])
    return Settings(**values)  # type: ignore[arg-type]  # each was read as its field's type


def load_settings() -> Settings:
    """The settings of this process."""
    return settings_from(os.environ)


def _read(name: str, text: str, kind: object) -> object:
    if isinstance(kind, types.UnionType):
        (kind,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in settings_checks.TRUTH:
            settings_checks.refuse(name, text, "give true or false")
        return settings_checks.TRUTH[text.lower()]
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        return settings_checks.refuse(name, text, f"give {wanted}")
