"""How a run stands, told on stdout, and the exit code that says the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.waits import Wait
from standfast.graph.awaited import awaited
from standfast.graph.cli.approval import approval_json, show_approval, show_ways_to_answer
from standfast.graph.cli.exits import code_of_status
from standfast.graph.cli.output import note, say, say_json
from standfast.graph.cli.session import Session
from standfast.graph.result import Result
from standfast.tools.questions import question_of


def show_result(session: Session, result: Result, *, as_json: bool, asking: bool = False) -> int:
    """Print how the run stands. With `asking`, what comes next is asked instead of printed as lines."""
    if as_json:
        say_json(result_json(result))
    elif result.status == "succeeded":
        _show_end(result)
    elif result.status == "waiting":
        _show_open(session, result, asking=asking)
    elif result.status == "queued":
        say(f"queued: run {result.run_id} is accepted, and workers carry it on")
    else:
        say(f"{result.status.replace('_', ' ')}: {result.reason or 'no reason was recorded'}")
        if isinstance(result.error, errors.RunLimitReached):
            note(result.error.message)
    if result.status in ("queued", "running", "needs_attention"):
        note(f"To carry it on here: {session.line(f'resume {result.thread_id}')}")
    if result.status != "waiting" or as_json:
        note(f"Thread {result.thread_id}: {result.status.replace('_', ' ')}. {_usage(result)}".rstrip())
    return code_of_status(result.status)


def result_json(result: Result) -> dict[str, Any]:
    """The result as `--json` prints it."""
    return {
        "thread_id": result.thread_id,
        "run_id": result.run_id,
        "status": result.status,
        "reason": result.reason,
        "outcome": result.outcome,
        "approvals": [approval_json(one) for one in result.approvals],
        "questions": [{"id": one.id, "node": one.node, "request": one.request} for one in result.questions],
        "waits": [_wait_json(one) for one in result.waits],
        "usage": result.usage,
    }


def _wait_json(wait: Wait) -> dict[str, Any]:
    match = wait.request.get("match") if isinstance(wait.request, dict) else None
    return {"kind": wait.kind, "name": wait.name, "match": match, "until": wait.until, "node": wait.node}


def _show_end(result: Result) -> None:
    outcome = result.outcome
    if not isinstance(outcome, Mapping):
        values = {name: value for name, value in result.values.items() if name != "messages"}
        text = str(result.messages[-1].text) if result.messages else ""
        say(text or json.dumps(values if outcome is None else outcome, ensure_ascii=False, default=str))
        return
    for effect in outcome.get("effects", ()):
        done = effect["result"]
        published = done.get("published") if isinstance(done, Mapping) else None
        say(f"Published: {published}" if published else f"Done: {effect['operation']} ({effect['operation_id']})")
    for declined in outcome.get("rejected", ()):
        say(f"Not done: {declined['operation']}. {declined['reason']}")
    if outcome.get("answer"):
        say(f"\n{outcome['answer']}")


def _show_open(session: Session, result: Result, *, asking: bool) -> None:
    for approval in result.approvals:
        show_approval(approval)
        if not asking:
            show_ways_to_answer(session, approval)
    for question in result.questions:
        say(f"\nThread {result.thread_id} asks (question {question.id}, at {question.node}):")
        say(question_text(question.request))
        say("\nTo answer: " + session.line(f'resume {result.thread_id} "..."'))
    for wait in result.waits:
        say(f"Waiting for {awaited(wait)}, at {wait.node}.")
        if wait.kind == "event":
            match = (wait.request or {}).get("match")
            matching = "" if match is None else f" --match {shlex.quote(json.dumps(match, ensure_ascii=False))}"
            line = session.line(f"emit {shlex.quote(wait.name or '')} [JSON]{matching} --id ID", with_graph=False)
            say(f"To emit it: {line}")
    if not asking:
        note(f"\nThread {result.thread_id} is waiting; it holds no process and no connection.")


def question_text(request: Any) -> str:
    """A question as a person reads it, with what was wrong with the last answer and the shape of a right one."""
    asked = question_of(request)
    if asked is None:
        return request if isinstance(request, str) else json.dumps(request, ensure_ascii=False, default=str)
    lines = [asked]
    if request["wrong"]:
        lines.append(f"The last answer was not taken: {request['wrong']}")
    if request["response_schema"]:
        lines.append(f"An answer is: {json.dumps(request['response_schema'], ensure_ascii=False)}")
    return "\n".join(lines)


def _usage(result: Result) -> str:
    return f"{result.usage['total_tokens']:,} tokens." if result.usage else ""
