"""Asks the person at the terminal: approve, edit, reject, or later.

Invariant: while the question stands nothing is held; the answer is bound to the digest of what was shown.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval
from standfast.graph.answers import Said
from standfast.graph.cli.approval import show_approval, show_ways_to_answer
from standfast.graph.cli.carry import carry_on
from standfast.graph.cli.exits import WAITING, sentence_of
from standfast.graph.cli.outcome import show_result
from standfast.graph.cli.output import is_terminal, note
from standfast.graph.cli.session import Session
from standfast.graph.result import Result
from standfast.graph.runtime import AsyncRuntime
from standfast.tools.principals import Principal


def can_ask() -> bool:
    """Whether somebody is there to be asked."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def show_and_ask(session: Session, result: Result, principal: Principal, *, as_json: bool) -> int:
    """Show how the run stands; at an approval ask for it if somebody is there. The exit code at the end."""
    if as_json or not can_ask():
        return show_result(session, result, as_json=as_json)
    later: set[str] = set()
    while True:
        open_ones = [one for one in result.approvals if one.id not in later]
        if result.status != "waiting" or not open_ones:
            break
        approval = open_ones[0]
        show_approval(approval)
        if approval.kind != "call":  # needs a look at the receiver first
            show_ways_to_answer(session, approval)
            later.add(approval.id)
            continue
        try:
            decided = _decide(session, approval, principal)
        except KeyboardInterrupt:
            show_ways_to_answer(session, approval)
            raise
        if decided is None:
            later.add(approval.id)
        else:
            result = decided
    if result.status == "waiting" and result.approvals:
        for approval in result.approvals:
            show_ways_to_answer(session, approval)
        return WAITING
    return show_result(session, result, as_json=False)


def _decide(session: Session, approval: Approval, principal: Principal) -> Result | None:
    """Ask until there is a decision that is taken; None is for later."""
    while True:
        said = _ask(approval)
        if said is None:
            return None

        async def work(runtime: AsyncRuntime, said: Said = said) -> None:
            await runtime.adecide(approval.id, said, as_=principal, seen_digest=approval.digest)

        try:
            session.run(work)
        except errors.InvalidRequest as error:
            note(sentence_of(error))
            continue
        except (errors.AlreadyDecided, errors.ApprovalExpired, errors.DigestMismatch) as error:
            note(sentence_of(error))
        return carry_on(session, approval.thread_id)


def _ask(approval: Approval) -> Said | None:
    while True:
        try:
            answer = input("\n[a]pprove, [e]dit, [r]eject, or [l]ater? ").strip().lower()
        except EOFError:
            return None
        if answer in ("a", "approve"):
            return Said("approve")
        if answer in ("l", "later", "q", "quit"):
            return None
        if answer in ("r", "reject"):
            try:
                reason = input("Why? (goes to the agent; empty goes back) ").strip()
            except EOFError:
                return None
            if reason:
                return Said("reject", reason)
        if answer in ("e", "edit"):
            try:
                arguments = edited(approval.arguments)
            except errors.InvalidRequest as error:
                note(sentence_of(error))
                continue
            if arguments is not None:
                return Said("edit", arguments=arguments)
            note("Nothing was changed.")


def edited(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """All arguments as a person left them in $VISUAL or $EDITOR, as JSON; None if nothing was changed.

    Raises `InvalidRequest`.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or shutil.which("nano") or shutil.which("vi")
    if not command:
        raise errors.InvalidRequest("no editor was found; set EDITOR, or use --set and --from")
    with tempfile.TemporaryDirectory(prefix="standfast-edit-") as folder:
        path = Path(folder) / "arguments.json"
        path.write_text(json.dumps(arguments, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        try:
            done = subprocess.run([*shlex.split(command), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise errors.InvalidRequest(f"the editor {command!r} cannot be started: {error}") from error
        if done.returncode != 0:
            raise errors.InvalidRequest(
                f"the editor {command!r} ended with status {done.returncode}; nothing was taken"
            )
        text = path.read_text(encoding="utf-8")
    changed = object_of(text, "the edited text")
    return None if _as_json(changed) == _as_json(arguments) else changed


def _as_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), sort_keys=True)  # tells 1 from true, which Python does not


def object_of(text: str, what: str) -> dict[str, Any]:
    """A JSON object. Raises `InvalidRequest` that says where it is wrong."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidRequest(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise errors.InvalidRequest(f"{what} must be a JSON object of arguments, not {type(value).__name__}")
    return value
