"""`worker`, `runs`, `waits`, `workers`, `retry`, `release`, `park`; `run` with --submit, --client-key, --on-busy."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.fixtures import Eventually

GRAPHS = """
from typing import TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt


class Note(TypedDict, total=False):
    text: str


def _one(node):
    graph = StateGraph(Note)
    graph.add_node("only", node)
    graph.add_edge(START, "only")
    return graph


async def _write(state):
    return {"text": "wrote " + state["text"]}


async def _ask(state):
    return {"text": interrupt("Shall I?")}


async def _fail(state):
    raise ValueError("it cannot be written")


def notes():
    return _one(_write)


def questions():
    return _one(_ask)


def failures():
    return _one(_fail)
"""

Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def graphs(tmp_path: Path, environment: None) -> Iterator[str]:
    """The name of an importable module with three graphs, in the current folder."""
    import sys

    name = f"graphs_of_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(GRAPHS)
    yield name
    sys.modules.pop(name, None)
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


@pytest.fixture
def submit(cli: Any, graphs: str) -> Callable[..., Any]:
    """Submit to one of the graphs; the command's end."""

    def run(graph: str, *arguments: str, text: str = "a") -> Any:
        given = json.dumps({"text": text})
        return cli("run", given, "--graph", f"{graphs}:{graph}", "--submit", "--json", *arguments)

    return run


@pytest.mark.timeout(120)
def test_a_worker_process_serves_what_was_submitted_tells_its_health_and_leaves_on_sigterm(
    submit: Any, cli: Any, graphs: str, script_path: str, tmp_path: Path, eventually: Eventually, unused_port: int
) -> None:
    health = tmp_path / "alive"
    command = [script_path, "worker", "--graph", f"{graphs}:notes", "--graph", f"other@7,6={graphs}:questions"]
    options = ["--log", "json", "--health-file", str(health), "--health-port", str(unused_port), "--name", "one"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, cwd=tmp_path) as process:
        eventually(health.exists, seconds=60)
        with urllib.request.urlopen(f"http://localhost:{unused_port}/") as answer:
            assert (200, b"ok\n") == (answer.status, answer.read())
        done = submit("notes", "--thread", "t")
        assert ("queued", 0) == (done.json["status"], done.code)
        eventually(lambda: "succeeded" in cli("threads").out, seconds=20)
        listed = cli("workers").out
        assert re.search(rf"^one +alive +{graphs}:notes@1, other@7, other@6 +10 ", listed, re.MULTILINE), listed
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)

    assert 0 == process.returncode
    lines = [json.loads(line) for line in log.decode().splitlines()]
    assert [("t", done.json["run_id"])] == [
        (line["thread_id"], line["run_id"]) for line in lines if line["message"] == "succeeded"
    ]
    assert "There are no workers" in cli("workers").err


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("=x:y", "--graph takes [NAME[@VERSION[,OLDER...]]=]MODULE:ATTR, not '=x:y'"),
        ("name@=x:y", "--graph takes [NAME[@VERSION[,OLDER...]]=]MODULE:ATTR, not 'name@=x:y'"),
        ("name@2,=x:y", "--graph takes [NAME[@VERSION[,OLDER...]]=]MODULE:ATTR, not 'name@2,=x:y'"),
        ("name=none", "--graph takes MODULE:ATTR, such as my_agent:graph, not 'none'"),
        ("name=no_such_module:y", "there is no module 'no_such_module'"),
    ],
)
def test_a_worker_refuses_a_graph_that_it_cannot_serve(cli: Any, given: str, sentence: str) -> None:
    done = cli("worker", "--graph", given)
    assert done.code == 2
    assert sentence in done.sentence


def test_the_same_client_key_is_the_same_run_and_for_another_request_it_is_refused(submit: Any, cli: Any) -> None:
    first, second = (submit("notes", "--client-key", "delivery 7").json for _ in range(2))
    assert first == second
    refused = submit("notes", "--client-key", "delivery 7", text="b")
    assert refused.code == 2
    assert "client key 'delivery 7' stands for another request" in refused.sentence
    assert 1 == len(cli("runs", "--json").json)


def test_what_comes_for_a_busy_thread_is_refused_unless_it_may_queue(submit: Any, cli: Any) -> None:
    submit("notes", "--thread", "t")
    assert submit("notes", "--thread", "t").code == 2
    assert submit("notes", "--thread", "t", "--on-busy", "queue").json["status"] == "queued"
    assert [(2, "queued"), (1, "queued")] == [(one["number"], one["status"]) for one in cli("runs", "--json").json]


def test_lists_are_filtered_and_limited(submit: Any, cli: Any, graphs: str) -> None:
    for number in range(3):
        submit("notes", "--thread", f"n-{number}")
    cli("run", '{"text": "a"}', "--graph", f"{graphs}:questions", "--thread", "q", "--json")
    assert "there may be more: --limit" in cli("threads", "--limit", "2").err
    assert "there may be more" not in cli("threads").err
    assert ["q"] == [one["thread_id"] for one in cli("threads", "--state", "waiting", "--json").json]
    assert ["n-2", "n-1"] == [
        one["thread_id"] for one in cli("threads", "--graph", f"{graphs}:notes", "--limit", "2", "--json").json
    ]
    assert [("q", "waiting")] == [
        (one["thread_id"], one["status"]) for one in cli("runs", "--thread", "q", "--json").json
    ]
    assert [("q", "question", "only")] == [
        (one["thread_id"], one["kind"], one["node"]) for one in cli("waits", "--json").json
    ]
    assert "Nothing waits." in cli("waits", "--kind", "timer").err
    assert re.search(r"^q +1 +waiting ", cli("runs").out, re.MULTILINE)
    assert re.search(r"^q +question ", cli("waits").out, re.MULTILINE)
    refused = cli("threads", "--state", "lost")
    assert refused.code == 2
    assert "there is no state 'lost'; there are queued, running" in refused.sentence


def test_runs_that_no_worker_serves_are_counted_with_their_age(
    submit: Any, cli: Any, graphs: str, query: Query
) -> None:
    for number in range(2):
        submit("notes", "--thread", f"n-{number}")
    query("update threads set due_at = due_at - interval '3 hours' where id = 'n-0'")
    assert f"No worker serves {graphs}:notes@1: 2 runs due, the oldest for 3 h\n" == cli("workers").out
    [lack] = cli("workers", "--json").json["unserved"]
    assert (f"{graphs}:notes", "1", 2) == (lack["graph"], lack["version"], lack["runs"])


def test_a_run_that_needs_attention_is_due_again_after_retry(cli: Any, graphs: str) -> None:
    place = f"{graphs}:failures"
    failed = cli("run", '{"text": "a"}', "--graph", place, "--thread", "t")
    assert failed.code == 1
    assert "needs attention" in failed.out
    retried = cli("retry", "t", "--json")
    assert (0, "queued") == (retried.code, retried.json["status"])
    refused = cli("retry", "t")
    assert refused.code == 2
    assert "thread 't' is queued, it needs no attention" in refused.sentence
    assert cli("retry", "none").code == 2


def test_a_lease_is_broken_only_when_somebody_says_that_its_holder_is_dead(submit: Any, cli: Any, query: Query) -> None:
    submit("notes", "--thread", "t")
    assert "nobody holds the lease of thread 't', it is queued" in cli("release", "t", "--yes").sentence
    query("update threads set lease_holder = 'x', lease_worker = 'gone:7', lease_expires_at = now() + interval '1 h'")
    refused = cli("release", "t")
    assert refused.code == 2
    assert "driven by gone:7" in refused.sentence
    assert [("x",)] == query("select lease_holder from threads")
    done = cli("release", "t", "--yes", "--json")
    assert (0, "gone:7") == (done.code, done.json["held_by"])
    assert [(None, 1)] == query("select lease_holder, crashes from threads")


def test_a_parked_run_says_why_and_can_be_cancelled(submit: Any, cli: Any) -> None:
    submit("notes", "--thread", "t")
    assert cli("park", "t", "--reason", "wait for Monday").code == 0
    assert ("needs_attention", "wait for Monday") == tuple(
        cli("threads", "--json").json[0][key] for key in ("status", "reason")
    )
    assert cli("cancel", "t").code == 0
    refused = cli("park", "t", "--reason", "again")
    assert refused.code == 2
    assert "has ended (cancelled)" in refused.sentence
