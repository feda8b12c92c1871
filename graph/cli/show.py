"""One thread's timeline, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from langchain_core.messages import AIMessage

from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.budget import Spent
from standfast.checkpoint.operations import Attempt, Operation
from standfast.checkpoint.threads import Run
from standfast.graph.awaited import awaited
from standfast.graph.cli.approval import approval_json, show_approval, show_ways_to_answer
from standfast.graph.cli.outcome import question_text
from standfast.graph.cli.output import counted, local_time, say, shortened
from standfast.graph.cli.session import Session
from standfast.graph.timeline import Step, Timeline
from standfast.tools.questions import question_of

_Entry = tuple[datetime, str, str]


def show_timeline(session: Session, timeline: Timeline) -> None:
    """The thread's story in order of time, and what it waits for now."""
    thread = timeline.thread
    say(f"Thread {thread.id}: {thread.status.replace('_', ' ')}" + (f", {thread.reason}" if thread.reason else ""))
    say(f"Graph {thread.graph!r}, version {thread.version}" + (f", driven by {thread.worker}" if thread.worker else ""))
    if timeline.limits:
        say(f"Run {timeline.runs[-1].number}: {timeline.limits}")
    day = None
    for at, kind, text in sorted(_entries(timeline), key=lambda entry: entry[0]):
        local = at.astimezone()
        if local.date() != day:
            day = local.date()
            say(f"\n{local:%A, %Y-%m-%d (%Z)}")
        say(f"{local:%H:%M:%S}.{local.microsecond // 100_000}  {kind:<9} {text}")
    if thread.status in ("succeeded", "failed", "cancelled"):
        return
    for approval in timeline.approvals:
        if approval.state == "open":
            show_approval(approval, whole=True)
            show_ways_to_answer(session, approval)
    for wait in timeline.waits:
        if wait.state == "open" and wait.kind == "question":
            say(f"\nIt asks (question {wait.id}, since {local_time(wait.opened_at)}): {question_text(wait.request)}")
            say("To answer: " + session.line(f'resume {thread.id} "..."'))
        elif wait.state == "open" and wait.kind != "approval":
            say(f"\nIt waits for {awaited(wait)}.")


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """The thread as `show --json` prints it."""
    thread = timeline.thread
    latest = timeline.runs[-1] if timeline.runs else None
    return {
        "thread_id": thread.id,
        "status": thread.status,
        "reason": thread.reason,
        "outcome": None if latest is None else latest.outcome,
        "graph": thread.graph,
        "version": thread.version,
        "fingerprint": thread.fingerprint,
        "worker": thread.worker,
        "created_at": thread.created_at,
        "updated_at": thread.updated_at,
        "runs": [_run_json(run, timeline) for run in timeline.runs],
        "steps": [_step_json(step) for step in timeline.steps],
        "operations": [_operation_json(one, timeline.attempts.get(one.id, ())) for one in timeline.operations],
        "approvals": [approval_json(one) for one in timeline.approvals],
        "waits": [
            {
                "id": one.id,
                "run_id": one.run_id,
                "kind": one.kind,
                "node": one.node,
                "approval_id": one.approval_id,
                "name": one.name,
                "until": one.until,
                "state": one.state,
                "request": one.request,
                "answer": one.answer,
                "answered_by": one.answered_by,
                "verified_by": one.verified_by,
                "opened_at": one.opened_at,
            }
            for one in timeline.waits
        ],
    }


# -- for people


def _entries(timeline: Timeline) -> Iterator[_Entry]:
    for run in timeline.runs:
        yield from _run_entries(run, timeline)
    for step in timeline.steps:
        if step.source == "loop" and step.nodes:
            names = ", ".join(name if count == 1 else f"{name} ({count})" for name, count in step.nodes.items())
            yield step.at, "step", f"{step.number}: {names}"
    for drive in timeline.told.drives:
        if drive.status == "needs_attention":
            yield drive.until, "attention", f"{drive.reason or 'no reason was recorded'}"
    for one in timeline.operations:
        yield from _operation_entries(one, timeline.attempts.get(one.id, ()))
    for approval in timeline.approvals:
        yield from _approval_entries(approval)
    for wait in timeline.waits:
        who = wait.answered_by and _who(wait.answered_by, wait.verified_by is None, wait.verified_by)
        ended = f"answered by {who}" if who else wait.state.replace("_", " ")
        if wait.kind == "question":
            yield (
                wait.opened_at,
                "question",
                f"{wait.id} at {wait.node}, {ended}: {shortened(question_of(wait.request) or wait.request)}",
            )
        elif wait.kind != "approval":
            yield wait.opened_at, "wait", f"{awaited(wait)} at {wait.node}, {ended}"


def _run_entries(run: Run, timeline: Timeline) -> Iterator[_Entry]:
    documents = timeline.documents.get(run.id)
    with_what = f", model {run.model}" if run.model else ""
    if documents:
        with_what += f", {counted(len(documents), 'document')}"
    who = _who(run.requested_by, run.vouched)
    yield run.accepted_at, "accepted", f"run {run.number}, from {who}{with_what}: {shortened(_request_of(run))}"
    if run.ended_at is not None:
        why = f": {run.reason}" if run.reason else ""
        yield run.ended_at, "ended", f"run {run.number} {run.state.replace('_', ' ')}{why}"


def _operation_entries(one: Operation, attempts: Any) -> Iterator[_Entry]:
    inner = "|" in one.namespace if one.kind == "step" else one.namespace
    indent = "  " if inner else ""
    if one.kind == "model":
        kind, what = "model", f"{one.name}{_answer_of(one)}"
    else:
        kind = "step" if one.kind == "step" else "operation"
        what = f"{one.name} {shortened(_values(one.arguments))}"
    if one.state != "succeeded":
        what += f" [{one.state}{': ' + one.failure_message if one.failure_message else ''}]"
    if len(attempts) == 1 and attempts[0].ended_at is not None:
        what += f" ({_seconds(attempts[0])})"
    at = attempts[0].started_at if attempts else one.created_at
    yield at, kind, indent + what
    for attempt in attempts:
        if attempt.late is not None:
            why = f": {attempt.late_message}" if attempt.late_message else ""
            text = f"{indent}{one.name}, {attempt.number} {attempt.late} when nobody waited for it any more{why}"
            yield attempt.late_at or at, "late", text
    if len(attempts) > 1:
        for attempt in attempts:
            why = f": {attempt.failure_message}" if attempt.failure_message else ""
            took = f" in {_seconds(attempt)}" if attempt.ended_at is not None else ""
            text = f"{indent}{one.name}, {attempt.number} on {attempt.worker}: {attempt.state}{took}{why}"
            yield attempt.started_at, "attempt", text
    if one.effect != "read" and one.state == "succeeded":
        yield one.updated_at, "done", f"{indent}{one.name}: {shortened(_values(one.result), 300)}"


def _approval_entries(one: Approval) -> Iterator[_Entry]:
    failed = f", {counted(len(one.failed_checks), 'failed check')}" if one.failed_checks else ""
    what = f"to {one.operation}, valid until {local_time(one.expires_at)}{failed}"
    if one.kind == "outcome":
        what = f"whether {one.operation} happened"
    yield one.requested_at, "asked", f"{one.id} {what} [{one.state}]"
    if one.decided_at is not None:
        by = "" if one.decided_by is None else f" by {_who(one.decided_by, bool(one.vouched), one.verified_by)}"
        own = ", who also made the request" if one.self_approved else ""
        why = f": {one.reason}" if one.reason else ""
        verb = one.state if one.state == "edited" else _DECIDED.get(one.decision or "", one.state)
        yield one.decided_at, "decided", f"{one.id} {verb}{by}{own}{why}"


_DECIDED: Final = {
    "edit": "edited and approved",
    "happened": "settled: it happened,",
    "did_not_happen": "settled: it did not happen,",
    "abandon": "given up",
}


def _request_of(run: Run) -> str:
    messages = run.input.get("messages") if isinstance(run.input, dict) else None
    return str(messages[-1].text) if messages and hasattr(messages[-1], "text") else str(run.input)


def _answer_of(one: Operation) -> str:
    if not isinstance(one.result, AIMessage):
        return ""
    tokens = one.result.usage_metadata
    used = f", {tokens['total_tokens']:,} tokens" if tokens else ""
    calls = [call["name"] for call in one.result.tool_calls]
    if not calls:
        return f": answers{used}"
    names = [name if calls.count(name) == 1 else f"{name} ({calls.count(name)})" for name in dict.fromkeys(calls)]
    return f": asks for {', '.join(names)}{used}"


def _values(value: Any) -> str:
    return ", ".join(str(one) for one in value.values()) if isinstance(value, dict) else str(value)


def _who(name: str, vouched: bool, verified_by: str | None = None) -> str:
    if vouched:
        return f"{name} (on the caller's word)"
    return name if verified_by is None else f"{name} (verified by {verified_by})"


def _seconds(attempt: Attempt) -> str:
    assert attempt.ended_at is not None
    return f"{(attempt.ended_at - attempt.started_at).total_seconds():.2f} s"


# -- as JSON


def _run_json(run: Run, timeline: Timeline) -> dict[str, Any]:
    return {
        "id": run.id,
        "number": run.number,
        "state": run.state,
        "reason": run.reason,
        "request": _request_of(run),
        "requested_by": run.requested_by,
        "vouched": run.vouched,
        "model": run.model,
        "reports_dir": run.settings.reports_dir,
        "documents": [{"name": one.name, "sha256": one.sha256} for one in timeline.documents.get(run.id, ())],
        "outcome": run.outcome,
        "deadline": run.deadline,
        "budget": None if run.budget is None else asdict(run.budget),
        "spent": asdict(timeline.spent.get(run.id, Spent())),
        "accepted_at": run.accepted_at,
        "ended_at": run.ended_at,
    }


def _step_json(step: Step) -> dict[str, Any]:
    return {
        "number": step.number,
        "at": step.at,
        "source": step.source,
        "nodes": step.nodes,
        "checkpoint_id": step.checkpoint_id,
        "run_id": step.run_id,
    }


def _operation_json(one: Operation, attempts: Any) -> dict[str, Any]:
    return {
        "id": one.id,
        "run_id": one.run_id,
        "kind": one.kind,
        "name": one.name,
        "namespace": one.namespace,
        "turn": one.turn,
        "index": one.index,
        "effect": one.effect,
        "state": one.state,
        "digest": one.digest,
        "arguments": one.arguments,
        "result": one.result,
        "failure_class": one.failure_class,
        "failure_message": one.failure_message,
        "created_at": one.created_at,
        "updated_at": one.updated_at,
        "attempts": [
            {
                "number": attempt.number,
                "worker": attempt.worker,
                "state": attempt.state,
                "started_at": attempt.started_at,
                "ended_at": attempt.ended_at,
                "failure_class": attempt.failure_class,
                "failure_message": attempt.failure_message,
                "late": attempt.late,
                "late_at": attempt.late_at,
                "late_message": attempt.late_message,
            }
            for attempt in attempts
        ],
    }
