"""The Faust app: its settings, the turns topic and the table of rows.

Faust gives structure, assignment and signals; commit, continuity and recovery are ours (see
`faust_hooks`). The table's store holds nothing itself: it passes Faust's signals on.
"""

from collections.abc import Set
from typing import Any, Protocol

import faust
from faust.stores import memory
from faust.types import TP

from streams.log.security import tls_context
from streams.processor import faust_hooks
from streams.settings import FRAMING_BYTES, Settings


class Signals(Protocol):
    """Who is told what Faust decides about partitions."""

    def keep_only(self, partitions: set[int]) -> None:
        """Partitions that stay; all others are another worker's now."""
        ...

    async def recovered(self, partitions: set[int]) -> None:
        """Awaited before events flow: load what these partitions hold."""
        ...


def build_app(settings: Settings) -> Any:
    """The app, as the settings and the traps of Faust want it."""
    servers = settings.bootstrap_servers.split(",")
    limit = settings.record_bytes_max + FRAMING_BYTES
    app = faust.App(
        settings.processor_id,
        broker=[f"kafka://{server.strip()}" for server in servers],
        broker_credentials=_credentials(settings),
        store="memory://",
        web_enabled=False,
        processing_guarantee="at_least_once",
        topic_partitions=settings.partitions,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        stream_wait_empty=False,
        stream_buffer_maxsize=settings.processor_buffer_events,
        stream_recovery_delay=0.0,
        broker_max_poll_records=None,
        consumer_max_fetch_size=limit,
        producer_max_request_size=limit,
        consumer_metadata_max_age_ms=int(settings.metadata_max_age_s * 1000),
        broker_request_timeout=max(90.0, settings.processor_session_timeout_s + 10),
        broker_session_timeout=settings.processor_session_timeout_s,
        broker_heartbeat_interval=settings.processor_heartbeat_interval_s,
        broker_rebalance_timeout=settings.processor_rebalance_timeout_s,
        broker_commit_interval=settings.processor_commit_interval_s,
    )
    faust_hooks.without_folders(app)
    return app


def _credentials(settings: Settings) -> Any:
    if settings.security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            mechanism=settings.sasl_mechanism,
            username=settings.sasl_username,
            password=settings.sasl_password,
            ssl_context=tls_context(settings),
        )
    if settings.security_protocol == "SSL":
        return faust.SSLCredentials(tls_context(settings))
    return None


def turns_topic(app: Any, settings: Settings) -> Any:
    """The source topic, as raw bytes."""
    return app.topic(
        settings.turns_topic,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        acks=False,  # Faust then neither tracks, nor commits, nor waits for offsets
        internal=False,
    )


def build_table(app: Any, settings: Settings, signals: Signals) -> Any:
    """The table of rows, with a store that hands Faust's signals on."""

    class Store(memory.Store[bytes, bytes]):
        """Where Faust tells of rebalances and recoveries."""

        async def on_rebalance(
            self, assigned: Set[TP], revoked: Set[TP], newly: Set[TP], generation: int = 0
        ) -> None:
            signals.keep_only({tp.partition for tp in assigned if tp.topic == settings.turns_topic})

        async def on_recovery_completed(self, active: Set[TP], standby: Set[TP]) -> None:
            # Not `active`: while a member joins, the table's partitions may be others than the
            # events' that are ours.
            assigned = self.app.consumer.assignment()
            ours = {tp.partition for tp in assigned if tp.topic == settings.turns_topic}
            await signals.recovered(ours)

    class Table(faust.Table[bytes, bytes]):
        """The rows; its changelog is written by the worker."""

        def _new_store(self) -> Store:
            return Store(
                "memory://",
                self.app,
                self,
                table_name=self.name,
                key_type=self.key_type,
                key_serializer=self.key_serializer,
                value_serializer=self.value_serializer,
                value_type=self.value_type,
                loop=self.loop,
                options=self.options,
            )

    return Table(
        app,
        name=settings.table_name,
        key_type=bytes,
        value_type=bytes,
        partitions=settings.partitions,
        beacon=app.tables.beacon,
    )
