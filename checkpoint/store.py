"""Everything that one runtime keeps in Postgres, opened together."""

from __future__ import annotations

from dataclasses import dataclass

from standfast.checkpoint.approvals import Approvals
from standfast.checkpoint.artifacts import Artifacts
from standfast.checkpoint.audit import Audit
from standfast.checkpoint.children import Children
from standfast.checkpoint.codec import Codec
from standfast.checkpoint.database import Database
from standfast.checkpoint.documents import Documents
from standfast.checkpoint.events import Events
from standfast.checkpoint.flow import Flow
from standfast.checkpoint.forks import Forks
from standfast.checkpoint.groups import Groups
from standfast.checkpoint.memory import Memory
from standfast.checkpoint.operations import Operations
from standfast.checkpoint.outbox import Outbox
from standfast.checkpoint.retention import Retention
from standfast.checkpoint.run_events import RunEvents
from standfast.checkpoint.schedules import Schedules
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.checkpoint.threads import Threads
from standfast.checkpoint.waits import Waits


@dataclass(frozen=True)
class Store:
    """The rows by noun, over one pool and one registry of types."""

    database: Database
    sealer: Sealer
    threads: Threads
    operations: Operations
    children: Children
    flow: Flow
    schedules: Schedules
    approvals: Approvals
    waits: Waits
    events: Events
    run_events: RunEvents
    documents: Documents
    groups: Groups
    audit: Audit
    memory: Memory
    forks: Forks
    outbox: Outbox
    artifacts: Artifacts
    retention: Retention

    @classmethod
    def over(cls, database: Database, registry: TypeRegistry, *, settings: Settings | None = None) -> Store:
        """The store over an open database; values hold the registry's types and no others.

        `settings` say where artifacts go, and what becomes one.
        """
        sealer = Sealer(Codec(registry))
        given = settings or Settings()
        kept = Artifacts(database, sealer, given.artifacts_url, threshold=given.artifact_bytes)
        outbox = Outbox(database, sealer, kept)
        operations = Operations(database, sealer, outbox)
        return cls(
            database,
            sealer,
            Threads(database, sealer, outbox, kept),
            operations,
            Children(database, sealer, operations, kept),
            Flow(database),
            Schedules(database, sealer),
            Approvals(database, sealer, outbox),
            Waits(database, sealer),
            Events(database, sealer),
            RunEvents(database, sealer),
            Documents(database),
            Groups(database),
            Audit(database),
            Memory(database, sealer),
            Forks(database, sealer),
            outbox,
            kept,
            Retention(database, sealer, kept),
        )
