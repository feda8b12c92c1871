"""`settle` and `complete`, and how `approvals` and `show` tell of what is in doubt or under way elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GRAPH = """
from pathlib import Path

from standfast.graph import DEFAULT_OPERATIONS, OperationContext, Pending, Policy, build_agent, operation
from tests.crash.support.scripted_model import ScriptedModel


@operation(policy=Policy(effect="at_most_once"))
async def launch(text: str, context: OperationContext) -> dict[str, int]:
    "Launch it."
    with Path("launched").open("a") as file:
        file.write("x")
    if len(Path("launched").read_text()) > 1:
        return {"launched": 2}
    raise ConnectionError("nobody there")


@operation(policy=Policy(effect="idempotent"))
async def render(text: str, context: OperationContext) -> dict[str, str] | Pending:
    "Begin to render."
    return Pending("job")


agent = build_agent(model=ScriptedModel(), operations=[*DEFAULT_OPERATIONS, launch, render])
"""


@pytest.fixture
def begun(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Run one operation of the graph above up to its wait, on the thread `t`; what was printed."""
    (tmp_path / "doubtful.py").write_text(GRAPH)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(name: str) -> Any:
        request = json.dumps({"turns": [[{"name": name, "args": {"text": "x"}}]]})
        message = {"role": "user", "content": request}
        done = cli("run", json.dumps({"messages": [message]}), "--graph", "doubtful:agent", "--thread", "t", "--json")
        assert done.code == 3, done.err
        return done.json

    return run


@pytest.mark.parametrize(
    ("answer", "launches", "effects"),
    [
        (["happened", "--result", '{"launched": 1}'], "x", [{"launched": 1}]),
        (["did-not-happen"], "xx", [{"launched": 2}]),
        (["abandon", "--reason", "too late"], "x", []),
    ],
)
def test_a_person_settles_a_doubt_and_the_thread_goes_on(
    cli: Any, begun: Any, tmp_path: Path, answer: list[str], launches: str, effects: list[Any]
) -> None:
    [question] = begun("launch")["approvals"]
    listed = cli("approvals")
    shown = cli("show", "t")
    settled = cli("settle", question["id"], *answer, "--graph", "doubtful:agent", "--as", "alex", "--json")
    again = cli("settle", question["id"], "abandon", "--as", "late")
    after = cli("show", "t")

    assert ("outcome", "launch") == (question["kind"], question["operation"])
    assert question["id"] in listed.out
    assert "It is not known whether launch took effect" in shown.out
    assert f"settle {question['id']} did-not-happen" in shown.out
    assert (0, "succeeded") == (settled.code, settled.json["status"]), settled.err
    assert launches == (tmp_path / "launched").read_text()
    assert effects == [one["result"] for one in settled.json["outcome"]["effects"]]
    assert (2, True) == (again.code, "already settled by alex" in again.err)
    assert f"{question['id']} whether launch happened [settled]" in after.out


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (["happened", "--result", "nonsense"], "--result is not JSON"),
        (["happened", "--result", '{"launched": "far"}'], "this is no result of launch"),
        (["abandon", "--result", "1"], "--result is of a call that happened"),
        (["approve"], "is not one of"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused_in_one_sentence(
    cli: Any, begun: Any, count: Any, answer: list[str], sentence: str
) -> None:
    [question] = begun("launch")["approvals"]
    before = count()
    refused = cli("settle", question["id"], *answer, "--graph", "doubtful:agent")

    assert (2, True) == (refused.code, sentence in refused.sentence), refused.err
    assert before == count()


def test_a_doubt_cannot_be_approved(cli: Any, begun: Any) -> None:
    [question] = begun("launch")["approvals"]
    refused = cli("approve", question["id"], "--no-wait")

    assert 2 == refused.code
    assert "happened, did_not_happen, abandon" in refused.err


@pytest.mark.parametrize(
    ("end", "text"),
    [(["--result", '{"file": "x.png"}'], '{"file": "x.png"}'), (["--error", "out of paint"], "out of paint")],
)
def test_work_elsewhere_is_completed_once(cli: Any, begun: Any, end: list[str], text: str) -> None:
    begun("render")
    [operation] = [one for one in cli("show", "t", "--json").json["operations"] if one["name"] == "render"]
    waiting = cli("show", "t")
    done = cli("complete", operation["id"], *end, "--as", "renderer")
    again = cli("complete", operation["id"], "--result", "1")
    result = cli("resume", "t", "--graph", "doubtful:agent", "--json")

    assert f"It waits for the end of operation {operation['id']}" in waiting.out
    assert 0 == done.code, done.err
    assert (2, True) == (again.code, "has been completed by renderer" in again.err)
    assert (0, "succeeded") == (result.code, result.json["status"])
    assert text in json.dumps(cli("show", "t", "--json").json).replace('\\"', '"')


def test_a_completion_of_nothing_is_refused(cli: Any) -> None:
    assert "there is no operation 'op-nowhere'" in cli("complete", "op-nowhere").sentence
    assert "not both" in cli("complete", "op-nowhere", "--result", "1", "--error", "x").sentence
