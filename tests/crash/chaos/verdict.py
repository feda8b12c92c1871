"""The verdict: what became of each thread, by the receiver's own log, the tables, and what people were told.

Invariant: nothing is taken from the workers' word; a thread that is not known to be well is counted against them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from standfast.checkpoint import errors
from standfast.graph import Status
from standfast.graph.runtime import AsyncRuntime
from tests.crash.chaos.people import EVENTS, Case

_FINAL: Final = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


@dataclass
class Verdict:
    """Complaints by kind, each with its thread."""

    lost: dict[str, str] = field(default_factory=dict)
    duplicated: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    stuck: dict[str, str] = field(default_factory=dict)
    done: int = 0

    @property
    def complaints(self) -> Sequence[str]:
        kinds = {"lost": self.lost, "duplicated": self.duplicated, "wrong": self.wrong, "stuck": self.stuck}
        return [f"{kind}: {thread}: {why}" for kind, found in kinds.items() for thread, why in found.items()]


@dataclass(frozen=True)
class Facts:
    """What was counted, by thread."""

    effects: Mapping[str, Counter[str]]  # made by the receiver
    calls: Mapping[str, Counter[str]]  # of what must not be sent twice
    entries: Mapping[str, Counter[str]]
    gaps: Sequence[str]
    forks: Sequence[str]
    held: Sequence[str]


def count(url: str, effects: Sequence[Mapping[str, Any]], requests: Sequence[Mapping[str, Any]]) -> Facts:
    """Everything that the verdict rests on."""
    made: dict[str, Counter[str]] = {}
    for one in effects:
        body = one["report"]["body"]
        made.setdefault(body["thread"], Counter())[body["text"]] += 1
    sent: dict[str, Counter[str]] = {}
    for one in requests:
        if one["method"] == "POST" and one["body"]["text"] == "shouted":
            sent.setdefault(one["body"]["thread"], Counter())["shouted"] += 1
    with psycopg.connect(url, options="-c search_path=standfast", row_factory=dict_row) as conn:
        entries: dict[str, Counter[str]] = {}
        for row in conn.execute("select text from public.entries"):
            thread, _, text = row["text"].partition(": ")
            entries.setdefault(thread, Counter())[text] += 1
        gaps = conn.execute(
            """select distinct thread_id as id from (
                 select thread_id, first, lag(last, 1, 0) over (partition by thread_id, run_id order by last) as before
                   from run_events) as e
                where first <> before + 1"""
        )
        forks = conn.execute(
            """select distinct thread_id as id from (
                 select thread_id, parent_checkpoint_id as parent,
                        lag(checkpoint_id) over (partition by thread_id order by checkpoint_id) as before
                   from checkpoints where checkpoint_ns = '') as c
                where parent is distinct from before"""
        )
        held = conn.execute("select id from threads where lease_holder is not null")
        return Facts(made, sent, entries, *([row["id"] for row in rows] for rows in (gaps, forks, held)))


async def judge(runtimes: Mapping[str, AsyncRuntime], cases: Sequence[Case], facts: Facts) -> Verdict:
    """The verdict on all threads."""
    verdict = Verdict()
    for case in cases:
        await _judge(verdict, runtimes[case.graph], case, facts)
    return verdict


async def _judge(verdict: Verdict, runtime: AsyncRuntime, case: Case, facts: Facts) -> None:
    thread = case.thread
    try:
        known = await runtime.store.threads.get(thread)
    except errors.UnknownThread:
        if case.accepted:
            verdict.lost[thread] = f"{case.graph}: it was accepted, and there is no such thread"
        return
    if known.status not in _FINAL:
        verdict.stuck[thread] = f"{case.graph}: it is {known.status} ({known.reason}), due: {known.due}"
        return
    verdict.done += 1
    if thread in facts.held:
        verdict.stuck[thread] = f"{case.graph}: it has ended, and somebody holds its lease"
    made = facts.effects.get(thread, Counter()) + facts.entries.get(thread, Counter())
    counts = [made, facts.calls.get(thread, Counter())]
    doubled = [f"{text} ({n} times)" for one in counts for text, n in one.items() if n > 1] + case.doubled
    if doubled:
        verdict.duplicated[thread] = f"{case.graph}: {', '.join(doubled)}"
    wanted, values = await _wanted(runtime, case)
    if missing := wanted - made.keys():
        verdict.lost[thread] = f"{case.graph}: {known.status} without {sorted(missing)}"
    wrong = case.troubles + [f"nobody asked for {text!r}" for text in made.keys() - wanted]
    status = Status.CANCELLED if case.graph == "hopeless" else Status.SUCCEEDED
    if known.status is not status:
        wrong.append(f"it is {known.status} ({known.reason})")
    if values is not None:
        wrong.append(values)
    if len(await runtime.store.threads.runs(thread)) != 1:
        wrong.append("it has more than one run")
    if thread in facts.gaps:
        wrong.append("its events have gaps")
    if thread in facts.forks:
        wrong.append("its checkpoints are no line")
    if [one.kind async for one in runtime.astream(thread, after=-1)] != ["run_end"]:
        wrong.append("its events go on behind its end")
    if wrong:
        verdict.wrong[thread] = f"{case.graph}: {'; '.join(wrong)}"


async def _wanted(runtime: AsyncRuntime, case: Case) -> tuple[set[str], str | None]:
    """The effects that the thread must have had, and what is wrong with its values, if anything."""
    state = await runtime.astate(case.thread)
    if case.graph == "agent":
        return await _errand(runtime, case, state.values)
    size, done = case.size, state.values.get("done", [])
    effects: dict[str, set[str]] = {
        "parallel": {f"branch {item}" for item in range(size)},
        "loop": {f"step {number}" for number in range(size)},
        "nested": {f"step {number}" for number in range(size)},
        "failing": {"tried"},
    }
    values: dict[str, list[Any]] = {
        "parallel": list(range(size)),
        "loop": list(range(size)),
        "nested": list(range(size)),
        "waiting": [*(f"{name} of {case.thread}" for name in EVENTS), "the timer"],
        "asking": [[item, case.answers.get(item)] for item in range(size)],
        "failing": ["tried again"],
        "hopeless": [],
    }
    told = None if done == values[case.graph] else f"it has {done!r} instead of {values[case.graph]!r}"
    return effects.get(case.graph, set()), told


async def _errand(runtime: AsyncRuntime, case: Case, values: Mapping[str, Any]) -> tuple[set[str], str | None]:
    asked = await runtime.aapprovals(thread_id=case.thread, state=None, limit=None)
    allowed = {one.decision for one in asked if one.kind == "call"} == {"approve"}
    wanted = {"jotted", "jotted too", "entered", "entered last", "insisted", "insisted, at first", "shouted"}
    if allowed:
        wanted.add("noted")
    messages = values.get("messages", [])
    calls = [call["id"] for one in messages for call in getattr(one, "tool_calls", ())]
    answers = [one.tool_call_id for one in messages if hasattr(one, "tool_call_id")]
    told = None if sorted(calls) == sorted(answers) and len(calls) == 7 else f"calls {calls}, answers {answers}"
    return wanted, told
