"""A process is killed at every named point; another one carries on, and nothing that was finished happens again.

One request's whole way: read a document, ask a specialist, propose a report, wait for a person, publish it. What
happened is counted outside: by the log of the server that got the report, and by the log of the model's server.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest

from standfast.checkpoint.audit import Audit
from standfast.checkpoint.crashpoints import POINTS
from standfast.checkpoint.database import Database
from tests.conftest import at_database
from tests.crash.support.processes import Ended, Nursery
from tests.servers.openai import OpenAIServer, Reply, ToolCall
from tests.servers.process import ServerProcess
from tests.servers.scripted import Request

pytestmark = [
    pytest.mark.guarantee("G1"),
    pytest.mark.guarantee("G2"),
    pytest.mark.guarantee("G4"),
    pytest.mark.timeout(300),  # whichever test is first runs the whole matrix
]

Where = Literal["asking", "deciding"]
AT_ONCE = 8  # children at a time: they mostly wait, for a lease to run out or for a server
QUOTE = "The lighthouse at Far Point was lit in 1871."


@dataclass(frozen=True)
class Case:
    """A kill at the n-th time that `point` is reached, while the request is asked or while it is approved."""

    point: str
    n: int
    where: Where
    to: Literal["server", "file"] = "server"

    @property
    def name(self) -> str:
        return f"case-{self.point.replace('.', '-')}-{self.n}-{self.where}-{self.to}"


CASES = [
    # A new database, in the middle of its migration: nothing has been accepted.
    Case("migrate.between", 1, "asking"),
    Case("migrate.inside", 1, "asking"),
    # Between acceptance and the question.
    Case("run.accepted", 1, "asking"),
    Case("saver.fenced", 1, "asking"),
    Case("saver.fenced", 4, "asking"),
    Case("saver.fenced", 9, "asking"),
    Case("saver.committed", 1, "asking"),
    Case("saver.committed", 5, "asking"),
    Case("saver.committed", 12, "asking"),
    Case("operation.begun", 1, "asking"),  # the model's first call
    Case("operation.begun", 2, "asking"),  # one of two siblings
    Case("operation.begun", 4, "asking"),
    Case("model.called", 1, "asking"),
    Case("model.called", 2, "asking"),  # the specialist's
    Case("model.called", 4, "asking"),
    Case("model.recorded", 1, "asking"),
    Case("model.recorded", 3, "asking"),
    Case("model.recorded", 4, "asking"),
    Case("node.analysis", 1, "asking"),
    Case("node.analysis", 4, "asking"),
    Case("node.validation", 1, "asking"),
    Case("node.validation", 3, "asking"),
    Case("node.approval", 1, "asking"),
    Case("node.approval", 3, "asking"),  # the report's: its request is open, nobody was asked
    Case("operation.done", 1, "asking"),
    Case("operation.done", 2, "asking"),
    Case("operation.recorded", 1, "asking"),
    Case("operation.recorded", 2, "asking"),
    Case("node.operate", 1, "asking"),
    Case("node.operate", 2, "asking"),
    Case("node.specialist", 1, "asking"),
    Case("approval.opened", 1, "asking"),
    Case("drive.parking", 1, "asking"),
    Case("drive.parked", 1, "asking"),  # a process that waits may die as well
    # Between the decision and the end.
    Case("approval.decided", 1, "deciding"),
    Case("lease.claimed", 1, "deciding"),
    Case("drive.resuming", 1, "deciding"),
    Case("node.approval", 1, "deciding"),
    Case("saver.fenced", 1, "deciding"),
    Case("saver.fenced", 3, "deciding"),
    Case("saver.committed", 1, "deciding"),
    Case("saver.committed", 2, "deciding"),
    Case("operation.begun", 1, "deciding"),  # the report is about to be published
    Case("operation.done", 1, "deciding"),  # it is published, nothing says so
    Case("operation.recorded", 1, "deciding"),
    Case("node.operate", 1, "deciding"),
    Case("model.called", 1, "deciding"),
    Case("model.recorded", 1, "deciding"),
    Case("node.record", 1, "deciding"),
    Case("drive.ending", 1, "deciding"),
    Case("drive.ended", 1, "deciding"),
    # The same effect as a file.
    Case("operation.begun", 1, "deciding", "file"),
    Case("report.written", 1, "deciding", "file"),
    Case("operation.done", 1, "deciding", "file"),
    Case("operation.recorded", 1, "deciding", "file"),
    Case("node.operate", 1, "deciding", "file"),
]
ELSEWHERE = {
    "outbox.sent",  # a dispatcher's: test_outbox_crash.py
    "artifact.placing",  # test_artifact_crash.py
    "parts.put",  # test_parts_crash.py
    "operation.failed",  # nothing fails here: test_retry_crash.py
}
FORGETFUL = [
    Case("operation.recorded", 1, "deciding"),
    Case("node.operate", 1, "deciding"),
]


def answer(request: Request) -> Reply:
    """What the model says, from the conversation alone."""
    messages = request.json["messages"]
    turn = sum(one["role"] == "assistant" for one in messages)
    case = case_of(request.json)
    if of_specialist(request.json):
        search = ToolCall(name="search_documents", arguments={"query": "lighthouse keeper"})
        return (Reply(calls=(search,)), Reply(text=f"Its keeper wrote a line into the log every night. ({case})"))[turn]
    read = ToolCall(name="read_document", arguments={"document": "lighthouse.txt"})
    ask = ToolCall(name="delegate", arguments={"specialist": "extractor", "task": f"Who kept it? ({case})"})
    publish = ToolCall(
        name="publish_report",
        arguments={
            "title": case,
            "body": QUOTE,
            "quotations": [{"document": "lighthouse.txt", "passage": 0, "quote": QUOTE}],
            "sources": [{"document": "lighthouse.txt", "sha256": _hash_read(messages)}],
        },
    )
    return (Reply(calls=(read, ask)), Reply(calls=(publish,)), Reply(text=f"Published {case}."))[turn]


def _hash_read(messages: list[dict[str, Any]]) -> str:
    found = re.search(r'"sha256": "([0-9a-f]{64})"', "\n".join(str(one.get("content")) for one in messages))
    return found.group(1) if found else ""


def case_of(body: dict[str, Any]) -> str:
    found = re.search(r"case-[\w-]+", json.dumps(body["messages"]))
    assert found is not None
    return found.group()


def of_specialist(body: dict[str, Any]) -> bool:
    return "You are the specialist" in body["messages"][0]["content"]


@dataclass
class Ran:
    """What became of a case."""

    case: Case
    killed: Ended
    told: dict[str, Any]
    reports: list[dict[str, Any]] = field(default_factory=list)
    questions: Counter[tuple[bool, int]] = field(default_factory=Counter)  # (the specialist's, turn): times asked
    files: dict[str, str] = field(default_factory=dict)

    def complaints(self) -> list[str]:
        """Everything that is not as if nobody had been killed."""
        wrong = []
        if self.killed.signal != signal.SIGKILL:
            wrong.append(f"the point was not reached: {self.killed}")
        before, after, end = self.told["before"], self.told["after"], self.told["end"]
        if end["status"] != "succeeded" or f"Published {self.case.name}" not in end["outcome"]["answer"]:
            return [*wrong, f"it ended as {end}, after {before}"]
        published = len(self.reports) if self.case.to == "server" else len(self.files)
        if published != 1:
            wrong.append(f"published {published} times: {self.reports or self.files}")
        if any(QUOTE not in text for text in self.files.values()):
            wrong.append(f"the file is not whole: {self.files}")
        if len(end["outcome"]["effects"]) != 1:
            wrong.append(f"the outcome tells of the effects {end['outcome']['effects']}")
        return [
            *wrong,
            *_asked_again(before, self.questions),
            *_acted_again(before, after),
            *_approvals(before, after, self.told["asked"]),
            *_conversation(after["messages"]),
        ]


def _asked_again(before: dict[str, Any], questions: Counter[tuple[bool, int]]) -> list[str]:
    recorded = {
        (bool(one["namespace"]), one["turn"])
        for one in before["operations"].values()
        if one["kind"] == "model" and one["state"] == "succeeded"
    }
    wrong = [f"the model was asked {key} again, whose answer was recorded" for key in recorded if questions[key] != 1]
    wrong += [f"the model was asked {key} {times} times" for key, times in questions.items() if times > 2]
    if set(questions) != {(False, 1), (False, 2), (False, 3), (True, 1), (True, 2)}:
        wrong.append(f"the model was asked {sorted(questions)}")
    return wrong


def _acted_again(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    wrong = []
    for identifier, one in after["operations"].items():
        known = before["operations"].get(identifier, {"attempts": 0, "state": "planned"})
        new = one["attempts"] - known["attempts"]
        if one["state"] != "succeeded" or new != (known["state"] != "succeeded"):
            wrong.append(f"{one['name']} was {known['state']} and is {one['state']}, after {new} more attempts")
    if len(after["operations"]) != 8:  # five answers, two reads, one report
        wrong.append(f"there are {len(after['operations'])} operations")
    abandoned = [one for one in after["attempts"] if one[2] != "succeeded"]
    if any(one[2] != "abandoned" for one in abandoned) or len(abandoned) > 2:  # of two siblings at most
        wrong.append(f"attempts ended as {abandoned}")
    return wrong


def _approvals(before: dict[str, Any], after: dict[str, Any], asked: list[str]) -> list[str]:
    known = set(before["approvals"]) | set(asked)
    if set(after["approvals"]) != known or list(after["approvals"].values()) != ["approved"]:
        return [f"approvals were {before['approvals']}, then {asked} were asked, and are {after['approvals']}"]
    return []


def _conversation(messages: list[dict[str, Any]]) -> list[str]:
    kinds = [one["type"] for one in messages]
    if kinds != ["human", "ai", "tool", "tool", "ai", "tool", "ai"]:
        return [f"the conversation is {kinds}"]
    if len({one["id"] for one in messages}) != len(messages):
        return ["two messages have one id"]
    return []


@dataclass(frozen=True)
class Matrix:
    """Runs cases, several at a time."""

    nursery: Nursery
    new_database: Callable[[], str]
    shared_url: str
    documents: Path
    model: OpenAIServer
    reports: ServerProcess
    folder: Path

    def run(self, cases: list[Case], **order: Any) -> dict[Case, Ran]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            ran = dict(zip(cases, pool.map(lambda case: self._run(case, order), cases), strict=True))
        effects = [one["report"] for one in self.reports.effects()]
        asked = [one["body"] for one in self.model.requests()]
        for case, one in ran.items():
            one.reports = [report for report in effects if report["body"]["title"] == case.name]
            one.questions = Counter(
                (of_specialist(body), 1 + sum(message["role"] == "assistant" for message in body["messages"]))
                for body in asked
                if case_of(body) == case.name
            )
        return ran

    def _run(self, case: Case, order: dict[str, Any]) -> Ran:
        folder = self.folder / case.name
        environment = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": self.model.base_url}
        if case.to == "server":
            environment["STANDFAST_REPORTS_URL"] = f"{self.reports.url}/reports"
        migrating = case.point.startswith("migrate")
        common: dict[str, Any] = {
            "url": self.new_database() if migrating else self.shared_url,
            "thread": case.name,
            "env": environment,
            "model": "openai:test-model",
            "documents": [str(self.documents)],
            "reports_dir": str(folder),
            "request": f"Report on the lighthouse. ({case.name})",
            **order,
        }
        kill = [case.point, case.n]
        if case.where == "asking":
            killed = self.nursery.run("ask", **common, kill=kill)
            if migrating:
                self.nursery.run("ask", **common).value  # noqa: B018 - AssertionError if it failed
        else:
            waiting = self.nursery.run("ask", **common).value["did"]
            approval = waiting["approvals"][0]["id"]
            killed = self.nursery.run("resume", **common, answer={"approve": approval}, kill=kill)
        told = self.nursery.run("carry_on", **common).value["did"]
        files = {path.name: path.read_text() for path in folder.iterdir()} if case.to == "file" else {}
        return Ran(case, killed, told, files=files)


@pytest.fixture(scope="module")
def new_database(server_url: str) -> Iterator[Callable[[], str]]:
    """Makes empty databases."""
    names: list[str] = []

    def make() -> str:
        name = f"killed_{len(names)}_{id(names):x}"
        names.append(name)
        with psycopg.connect(server_url, autocommit=True) as conn:
            conn.execute(f"create database {name}")
        return at_database(server_url, name)

    yield make
    with psycopg.connect(server_url, autocommit=True) as conn:
        for name in names:
            conn.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIServer]:
    with OpenAIServer(tmp_path_factory.mktemp("model") / "openai.jsonl") as server:
        for _ in range(1000):
            server.script(answer)
        yield server


@pytest.fixture(scope="module")
def forgiving_reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A receiver that knows no keys: what arrives twice is published twice."""
    log = tmp_path_factory.mktemp("forgiving") / "reports.jsonl"
    with ServerProcess("reports", log, "--mode", "ignores_key") as server:
        yield server


@pytest.fixture(scope="module")
def matrix(
    nursery: Nursery,
    new_database: Callable[[], str],
    shared_database_url: str,
    documents: Path,
    model: OpenAIServer,
    reports: ServerProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Matrix:
    folder = tmp_path_factory.mktemp("published")
    return Matrix(nursery, new_database, shared_database_url, documents, model, reports, folder)


@pytest.fixture(scope="module")
def ran(matrix: Matrix) -> dict[Case, Ran]:
    """All cases, run once for the module."""
    return matrix.run(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.removeprefix("case-"))
def test_a_process_killed_here_loses_nothing_and_repeats_nothing(ran: dict[Case, Ran], case: Case) -> None:
    assert [] == ran[case].complaints()


def test_every_point_of_the_list_was_reached_by_a_kill(ran: dict[Case, Ran]) -> None:
    killed = {case.point for case, one in ran.items() if one.killed.signal == signal.SIGKILL}

    assert set(POINTS) - ELSEWHERE == killed


@pytest.mark.guarantee("G6")
async def test_after_every_kill_the_audit_tells_each_thing_once(matrix: Matrix, ran: dict[Case, Ran]) -> None:
    database = Database(matrix.shared_url)
    await database.open()
    found = await Audit(database).verify()
    shared = [case.name for case in ran if not case.point.startswith("migrate")]
    told = {name: [one.facts["kind"] async for one in Audit(database).entries(name)] for name in shared}
    await database.close()

    assert () == found.findings
    assert {name: ["request", "decision", "outcome", "use"] for name in shared} == told


def test_an_attempt_killed_before_its_record_is_made_again(ran: dict[Case, Ran]) -> None:
    """The counting is alive: where asking again is right, the server's log shows it."""
    assert 2 == ran[Case("model.called", 1, "asking")].questions[False, 1]
    assert 2 == ran[Case("model.called", 1, "deciding")].questions[False, 3]


def test_without_the_ledgers_memory_the_matrix_reports_duplicates(
    matrix: Matrix, forgiving_reports: ServerProcess, new_database: Callable[[], str]
) -> None:
    """And with it, the same kills before a receiver that knows no keys publish once."""
    strict = Matrix(
        matrix.nursery,
        new_database,
        matrix.shared_url,
        matrix.documents,
        matrix.model,
        forgiving_reports,
        matrix.folder,
    )
    kept = strict.run(FORGETFUL, url=_migrated(strict, new_database))
    remembered = {case.name: len(kept[case].reports) for case in FORGETFUL}
    lost = strict.run(FORGETFUL, url=_migrated(strict, new_database), forgetful=True)

    assert {case.name: 1 for case in FORGETFUL} == remembered
    for case in FORGETFUL:
        assert any("published 3 times" in one for one in lost[case].complaints())


def _migrated(matrix: Matrix, new_database: Callable[[], str]) -> str:
    """A database of its own, so that the same case names are new threads there."""
    url = new_database()
    matrix.nursery.run("migrated", url=url, thread="").value  # noqa: B018 - AssertionError if it failed
    return url
