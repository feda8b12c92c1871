"""Whether loaded code may drive a thread: the one comparison of graphs, versions and fingerprints.

Invariant: every way to a drive asks here, whoever claims asks again under the lease; what is refused is left as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

from standfast.checkpoint import errors
from standfast.checkpoint.threads import Thread


@dataclass(frozen=True)
class Deployed:
    """The graph that a process has loaded. `takes_over`: other versions whose threads this code can continue."""

    name: str
    version: str
    fingerprint: str
    takes_over: frozenset[str] = frozenset()

    def serves(self, graph: str, version: str) -> bool:
        """Whether workers come for threads of this graph and version: its own version, or one that is taken over."""
        return self.name == graph and (version == self.version or version in self.takes_over)

    def drives(self, thread: Thread) -> bool:
        """Whether a thread is this code's to drive: workers come for it, or it has the same fingerprint."""
        return self.serves(thread.graph, thread.version) or (
            self.name == thread.graph and thread.fingerprint == self.fingerprint
        )

    def require(self, thread: Thread) -> None:
        """Raise `GraphChanged` for a thread of this graph that another version must drive."""
        if thread.graph == self.name and not self.drives(thread):
            raise errors.GraphChanged(
                f"thread {thread.id!r} is of version {thread.version!r} of graph {self.name!r}, and version "
                f"{self.version!r}, which is loaded, has another shape. The thread was left as it was: drive it with "
                f"its own version, or say that this code can continue it: takes_over={{{thread.version!r}}}",
                thread_id=thread.id,
                thread_version=thread.version,
                version=self.version,
            )

    def not_served(self, thread: Thread) -> errors.GraphNotServed:
        """The refusal to wait for a thread of another graph that no living worker serves."""
        return errors.GraphNotServed(
            f"thread {thread.id!r} belongs to graph {thread.graph!r}; this is graph {self.name!r}, and no living "
            f"worker serves that one. What was said to the thread stands. Carry it on with that graph and "
            f"name={thread.graph!r} (on the command line: --graph), or start a worker that serves it",
            thread_id=thread.id,
            graph=thread.graph,
        )
