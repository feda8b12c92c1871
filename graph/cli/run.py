"""`standfast run`: accepts a request and drives it to its end or to a person."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from standfast.checkpoint import errors
from standfast.checkpoint.threads import OnBusy
from standfast.graph.bar import Bar
from standfast.graph.cli.ask import show_and_ask
from standfast.graph.cli.carry import drive
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.limits import budget_of_text, seconds_of
from standfast.graph.cli.outcome import show_result
from standfast.graph.cli.output import counted, is_terminal, note
from standfast.graph.cli.progress import Progress
from standfast.graph.cli.session import session
from standfast.graph.door import MOST_CHARACTERS, thread_id_of
from standfast.graph.result import Result
from standfast.graph.runtime import AsyncRuntime
from standfast.nodes.models import OFFLINE, default_model, load_model
from standfast.tools.readers import ReadDocument, SkippedFile, count_files

_MOST_BYTES: Final = 4 * MOST_CHARACTERS  # of UTF-8
_NAMED: Final = 8  # documents that are named; more are counted


def run(
    database: str | None,
    request: str,
    *,
    documents: Sequence[Path],
    thread: str | None,
    model: str | None,
    reports: Path | None,
    graph: str | None,
    as_: str | None,
    submit: bool,
    client_key: str | None,
    on_busy: OnBusy,
    deadline: str | None,
    budget: str | None,
    priority: int,
    as_json: bool,
) -> int:
    """Run one request. The exit code at the end."""
    thread_id = thread_id_of(_new_thread(client_key) if thread is None else thread)
    limits = {"deadline": seconds_of(deadline), "budget": budget_of_text(budget), "priority": priority}
    given = request_of(request, own_graph=graph is not None)
    with _Files(documents) as files, session(database, graph, strict=True) as current:
        principal = current.principal(as_)
        if graph is None:
            model = model or current.settings.model or default_model()
            load_model(model)  # refused here, before anything is accepted
            note(model_line(model))
            if not current.settings.reports_url:
                require_writable(reports or current.settings.reports_dir or Path("reports"))
        options: dict[str, Any] = {
            "thread_id": thread_id,
            "as_": principal,
            "documents": documents,
            "model": model,
            "reports_dir": reports,
            "report": files,
            "client_key": client_key,
            "on_busy": on_busy,
            **limits,
        }
        if submit:
            result = current.run(lambda runtime: runtime.asubmit(given, **options))
            files.summary()
            show_result(current, result, as_json=as_json)
            return SUCCEEDED

        async def work(runtime: AsyncRuntime, progress: Progress) -> Result:
            if on_busy != "refuse":
                note(f"If thread {thread_id} is busy this run waits for its turn; Ctrl-C stops only the waiting.")
            return await runtime.ainvoke(given, on_event=progress, **options)

        progress = Progress(files.summary)
        result = drive(current, work, progress, thread_id=thread_id)
        return show_and_ask(current, result, principal, as_json=as_json)


def _new_thread(client_key: str | None) -> str:
    """An id for a new thread; the same one for the same key, whose second request is the first one again."""
    if client_key is None:
        return f"thread-{uuid.uuid4().hex[:16]}"
    return f"thread-{hashlib.sha256(client_key.encode(errors='surrogatepass')).hexdigest()[:16]}"


def model_line(name: str) -> str:
    """Which model answers, in one line."""
    if name == OFFLINE:
        return (
            "Model: offline. It is not a language model: it searches, reads and quotes by the words of the request. "
            "For one, set OPENAI_API_KEY (and OPENAI_BASE_URL), or give --model openai:NAME."
        )
    server = os.environ.get("OPENAI_BASE_URL")
    return f"Model: {name}" + (f" at {server}" if server else "")


def require_writable(directory: Path) -> None:
    """Refuse a folder for reports that could not be written to. Raises `InvalidRequest`."""
    path = directory.expanduser().absolute()
    existing = path
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise errors.InvalidRequest(f"reports cannot be written to {str(path)!r}: {str(existing)!r} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise errors.InvalidRequest(
            f"reports cannot be written to {str(path)!r}: no permission in {str(existing)!r}; give --reports DIR"
        )


def request_of(request: str, *, own_graph: bool) -> Any:
    """The request as it was given; for one's own graph a JSON object is the fields of its state."""
    given: str | bytes = request if request != "-" else _standard_input()
    if own_graph:
        try:
            fields = json.loads(given)
        except (ValueError, RecursionError) as error:
            if given.lstrip()[:1] in ("{", b"{"):
                raise errors.InvalidRequest(
                    f"the request begins as a JSON object of fields and is none: {error}; nothing was started"
                ) from error
            return given
        if isinstance(fields, dict):
            return fields
    return given


def _standard_input() -> bytes:
    if is_terminal(sys.stdin):
        note("Type the request; Ctrl-D ends it.")
    data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise errors.InvalidRequest(
            f"the request on standard input is larger than {_MOST_BYTES:,} bytes, at most {MOST_CHARACTERS:,} "
            "characters are taken; put long material into a document"
        )
    return data


class _Files:
    """Tells of the documents: what is skipped at once, what was read together at the end; if it takes long, how far."""

    def __init__(self, documents: Sequence[Path]) -> None:
        self._read: list[ReadDocument] = []
        self._bar = Bar("Reading documents", unit="file", total=count_files(documents))

    def __call__(self, file: ReadDocument | SkippedFile) -> None:
        self._bar.add()
        if isinstance(file, SkippedFile):
            note(f"Skipped {file.name}: {file.reason}")
        else:
            self._read.append(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def summary(self) -> None:
        self._bar.close()
        if not self._read:
            return
        names = ", ".join(one.name for one in self._read[:_NAMED])
        more = f" and {len(self._read) - _NAMED} more" if len(self._read) > _NAMED else ""
        size = sum(one.size for one in self._read)
        note(f"Read {counted(len(self._read), 'document')} ({size / 1000:,.0f} kB): {names}{more}")
