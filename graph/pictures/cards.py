"""Results, threads and approvals as cards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.differences import Change
from standfast.checkpoint.threads import Thread
from standfast.graph.awaited import waiting_for
from standfast.graph.pictures.markup import Html, Piece, display, element, facts, joined, tag
from standfast.graph.result import Result
from standfast.graph.visible import local_time

_MOST_CHARACTERS: Final = 20_000


def result_card(result: Result) -> Html:
    """How a run stands, what came out of it, and what it waits for."""
    answer: Any = result.outcome
    if isinstance(answer, Mapping):
        answer = answer.get("answer", answer)
    usage = result.usage
    pieces: list[Piece] = [
        element("div", tag(result.status), element("b", result.thread_id), class_="head"),
        element("p", result.reason) if result.reason else None,
        None if answer is None else value_of(answer),
        facts([("tokens", f"{usage['total_tokens']:,}" if usage else None)]) if usage else None,
    ]
    for approval in result.approvals:
        pieces.append(element("hr", style="border:0;border-top:1px solid var(--line)"))
        pieces.append(joined(_approval(approval)))
    for question in result.questions:
        pieces.append(element("p", element("b", "It asks: "), _text(question.request)))
        pieces.append(element("pre", f'runtime.resume("{result.thread_id}", ...)'))
    pieces += [element("p", waiting_for(one).capitalize()) for one in result.waits]
    if result.outcome is None and result.values and "messages" not in result.values and not result.approvals:
        pieces.append(facts((name, value_of(value)) for name, value in result.values.items()))
    return display(*pieces)


def thread_card(thread: Thread) -> Html:
    """A thread's small columns."""
    known: list[tuple[str, Piece]] = [
        ("graph", f"{thread.graph}, version {thread.version}"),
        ("driven by", thread.worker),
        ("due", "something is to be done, and nobody does it yet" if thread.due else None),
        ("crashes", f"{thread.crashes} in a row" if thread.crashes else None),
        ("began", local_time(thread.created_at)),
        ("changed", local_time(thread.updated_at)),
    ]
    head = element("div", tag(thread.status), element("b", thread.id), class_="head")
    return display(head, element("p", thread.reason) if thread.reason else None, facts(known))


def approval_card(approval: Approval) -> Html:
    """Everything that a decision is about, and the lines that decide. Nothing is left out."""
    return display(*_approval(approval))


def _approval(one: Approval) -> Iterator[Piece]:
    yield element("div", tag(one.state), element("b", one.operation), element("code", one.id), class_="head")
    if one.kind == "outcome":
        yield element("p", one.description)
    group = f" of {one.group}" if one.group else ""
    yield facts(
        [
            ("asked by", f"{one.requested_by}, in thread {one.thread_id}"),
            ("valid until", local_time(one.expires_at) if one.state == "open" else None),
            ("needs", f"{one.required} people{group}" if one.required > 1 or one.group else None),
            ("approved so far", ", ".join(one.votes) if one.votes and one.state == "open" else None),
            ("decided by", _decided(one)),
            ("reason", one.reason),
            ("used", local_time(one.used_at) if one.used_at else None),
        ]
    )
    for check in one.failed_checks:
        yield element("p", element("span", "failed check", class_="tag red"), " ", check)
    for name, value in one.arguments.items():
        yield joined([element("div", name, class_="dim"), value_of(value, whole=True)])
    for change in one.difference:
        yield joined([element("div", f"{change.path}, changed", class_="dim"), _change(change)])
    if one.state == "open":
        yield element("div", "To answer, from any process", class_="dim")
        yield element("pre", "\n".join(_ways_to_answer(one)))


def _change(change: Change) -> Html:
    return element("pre", element("del", _text(change.before)), "\n", element("ins", _text(change.after)))


def _ways_to_answer(one: Approval) -> list[str]:
    beginning = f'runtime.resume("{one.thread_id}", '
    if one.kind == "outcome":
        return [
            f"standfast settle {one.id} happened --result '...'",
            f"standfast settle {one.id} did-not-happen",
        ]
    lines = {
        "approve": f'{beginning}approve="{one.id}")',
        "reject": f'{beginning}reject="{one.id}", reason="...")',
        "edit": f'{beginning}edit="{one.id}", changes={{...}})',
    }
    return [lines[verb] for verb in one.allowed if verb in lines]


def _decided(one: Approval) -> str | None:
    if one.decided_by is None:
        return None
    own = ", who also made the request" if one.self_approved else ""
    return one.decided_by + (" (on the caller's word)" if one.vouched else "") + own


def value_of(value: Any, *, whole: bool = False) -> Html:
    """A value as a block of text; of a very long one the beginning, unless it must be `whole`."""
    text = _text(value)
    if not whole and len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}... ({len(text):,} characters)"
    return element("pre", text)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=repr)
