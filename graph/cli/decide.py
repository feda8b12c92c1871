"""`approve`, `reject`, `edit`, `resume`, `cancel`: what a person says to a thread, and the thread's going on.

Invariant: what was said is committed before anything is driven, and stands whatever happens then.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Verb
from standfast.graph.answers import Said
from standfast.graph.cli.approval import approval_json, show_approval
from standfast.graph.cli.ask import can_ask, edited, object_of, show_and_ask
from standfast.graph.cli.carry import carry_on, drive, take_graph_of
from standfast.graph.cli.exits import FAILED, REFUSED, SUCCEEDED, WAITING, code_of_error, code_of_status, sentence_of
from standfast.graph.cli.outcome import show_result
from standfast.graph.cli.output import note, say_json
from standfast.graph.cli.progress import Progress
from standfast.graph.cli.session import Session, session
from standfast.graph.door import text_of, thread_id_of
from standfast.graph.result import Result
from standfast.graph.runtime import AsyncRuntime
from standfast.tools.principals import Principal

_LOOKS_MEANT: Final = frozenset({"true", "false", "null", "none"})  # as a value, by whoever types one of these


def decide(
    database: str | None,
    approval_id: str,
    verb: Verb,
    reason: str | None,
    *,
    graph: str | None,
    as_: str | None,
    digest: str | None,
    wait: bool,
    as_json: bool,
    changes: Sequence[str] = (),
    changes_from: Path | None = None,
    response: str | None = None,
) -> int:
    """Decide one approval, then carry its thread on. The exit code at the end."""
    said = Said(verb, None if reason is None else text_of(reason, "reason"), response=response)
    with session(database, graph) as current:
        principal = current.principal(as_)
        if verb == "edit":
            approval = current.run(lambda runtime: runtime.store.approvals.get(approval_id))
            digest = digest or approval.digest
            said = Said(verb, reason, _arguments(approval, changes, changes_from))

        async def work(runtime: AsyncRuntime) -> Approval:
            return await runtime.adecide(approval_id, said, as_=principal, seen_digest=digest)

        decided = current.run(work)
        note(_told(decided, verb, principal))
        return carry_on_after(current, decided, principal, wait=wait, as_json=as_json)


def carry_on_after(session: Session, decided: Approval, principal: Principal, *, wait: bool, as_json: bool) -> int:
    """Carry the thread of a decision on, unless nobody shall wait for it. The exit code at the end."""
    if not wait:
        if as_json:
            say_json(approval_json(decided))
        return SUCCEEDED
    try:
        result = carry_on(session, decided.thread_id)
    except errors.GraphChanged as error:
        note(f"The decision stands, but the thread was not carried on: {sentence_of(error)}")
        return FAILED
    return show_and_ask(session, result, principal, as_json=as_json)


def decide_each(
    database: str | None,
    approval_ids: Sequence[str],
    verb: Verb,
    reason: str | None,
    *,
    graph: str | None,
    as_: str | None,
    digest: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Show several approvals and decide each for itself, for what was shown; then carry their threads on.

    One that is refused stops none of the others. The exit code is the worst one.
    """
    if digest is not None:
        raise errors.InvalidRequest("--digest is of one approval, and there are several")
    said = Said(verb, None if reason is None else text_of(reason, "reason"))
    decided: list[Approval] = []
    codes: list[int] = [SUCCEEDED]
    with session(database, graph) as current:
        principal = current.principal(as_)
        for identifier in dict.fromkeys(approval_ids):

            async def work(runtime: AsyncRuntime, identifier: str = identifier) -> Approval:
                approval = await runtime.store.approvals.get(identifier)
                if not as_json:
                    show_approval(approval)
                return await runtime.adecide(identifier, said, as_=principal, seen_digest=approval.digest)

            try:
                decided.append(current.run(work))
            except errors.StandfastError as error:
                note(sentence_of(error))
                codes.append(code_of_error(error))
            else:
                note(_told(decided[-1], verb, principal))
        for thread in dict.fromkeys(one.thread_id for one in decided if wait):
            try:
                result = carry_on(current, thread)
            except errors.GraphChanged as error:
                note(f"The decision stands, but thread {thread} was not carried on: {sentence_of(error)}")
                codes.append(FAILED)
            else:
                note(f"Thread {thread}: {result.status.replace('_', ' ')}.")
                codes.append(code_of_status(result.status))
    if as_json:
        say_json([approval_json(one) for one in decided])
    return max(codes, key=_WORST.index)


def resume(
    database: str | None,
    thread: str,
    answer: str | None,
    *,
    graph: str | None,
    as_: str | None,
    json_answer: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Carry a thread on, with an answer to its open question if one is given. The exit code at the end."""
    thread_id = thread_id_of(thread)
    value: Any = answer
    if answer is not None and json_answer:
        try:
            value = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise errors.InvalidRequest(f"the answer is not JSON: {error}; without --json-answer it is text") from error
    elif answer is not None and answer.strip().lower() in _LOOKS_MEANT:
        raise errors.InvalidRequest(
            f"as it stands the answer is the text {answer!r}, which a node would take for a yes; with --json-answer "
            f"true, false and null are values, and '\"{answer}\"' is the text"
        )
    with session(database, graph) as current:
        principal = current.principal(as_)
        if answer is not None:

            async def work(runtime: AsyncRuntime) -> None:
                await take_graph_of(current, runtime, thread_id)
                await runtime.aanswer(thread_id, value, as_=principal)

            current.run(work)
            note("The answer is recorded.")
            if not wait:
                return SUCCEEDED
        result = carry_on(current, thread_id, follow=wait)
        return show_and_ask(current, result, principal, as_json=as_json)


def cancel(database: str | None, thread: str, *, as_json: bool) -> int:
    """Cancel a thread's unfinished run; it succeeded when the run is cancelled."""
    thread_id = thread_id_of(thread)
    with session(database) as current:

        async def work(runtime: AsyncRuntime, progress: Progress) -> Result:
            return await runtime.acancel(thread_id)

        result = drive(current, work, Progress(), thread_id=thread_id)
        code = show_result(current, result, as_json=as_json)
        return SUCCEEDED if result.status == "cancelled" else code


def _arguments(approval: Approval, given: Sequence[str], path: Path | None) -> Mapping[str, Any]:
    """All arguments of an edit: --set and --from change the proposed ones, an editor is shown them whole."""
    if not given and path is None:
        if not can_ask():
            fields = ", ".join(approval.arguments)
            raise errors.InvalidRequest(
                f"nothing to edit: give --set FIELD=VALUE or --from FILE.json (the fields: {fields})"
            )
        whole = edited(approval.arguments)
        if whole is None:
            raise errors.InvalidRequest(f"nothing was changed; approval {approval.id!r} stays open")
        return whole
    arguments: dict[str, Any] = copy.deepcopy(dict(approval.arguments))
    if path is not None:
        arguments.update(object_of(_text(path), str(path)))
    for one in given:
        _set(arguments, one)
    return arguments


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise errors.InvalidRequest(f"{str(path)!r} cannot be read: {why}") from error


def _set(arguments: dict[str, Any], given: str) -> None:
    """Apply `field=value`: the value is JSON if it parses, else text; dots lead into nested fields and lists."""
    field, equals, text = given.partition("=")
    if not equals or not field:
        raise errors.InvalidRequest(f"--set takes FIELD=VALUE, not {given!r}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    place: Any = arguments
    *way, last = field.split(".")
    for number, name in enumerate([*way, last], 1):
        if isinstance(place, list):
            if not name.isdigit() or int(name) >= len(place):
                raise errors.InvalidRequest(f"--set {field}: {name!r} is not one of the {len(place)} places of a list")
            at: Any = int(name)
        elif isinstance(place, dict):
            if name not in place and number <= len(way):
                raise errors.InvalidRequest(f"--set {field}: there is no field {name!r}; there are {', '.join(place)}")
            at = name
        else:
            raise errors.InvalidRequest(
                f"--set {field}: {name!r} would be inside {type(place).__name__}, not an object"
            )
        if number <= len(way):
            place = place[at]
        else:
            place[at] = value


def _told(decided: Approval, verb: Verb, principal: Principal) -> str:
    what = f"{decided.operation} ({decided.id}) as {principal.name}"
    if decided.state == "open":
        return f"Voted for {what}: {len(decided.votes)} of {decided.required}."
    if decided.state == "edited":
        return f"Edited {what}; people must approve it as it is now."
    return f"{_DONE[verb]} {what}."


_DONE: Final[Mapping[Verb, str]] = {
    "approve": "Approved",
    "reject": "Rejected",
    "edit": "Edited and approved",
    "respond": "Answered in place of",
    "withdraw": "Withdrew",
}
_WORST: Final = (SUCCEEDED, WAITING, REFUSED, FAILED)
