"""`standfast run`: what a newcomer sees, and what is refused at the door."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
FIRST_REQUEST = "Compare what GPL-3 and Apache-2.0 ask of someone who ships modified binaries, and publish a report"


def test_the_first_line_of_the_readme_stops_at_the_approval_and_any_folder_answers_it(
    script: Any, tmp_path: Path
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()

    asked = script("run", FIRST_REQUEST, "--docs", str(REPOSITORY / "notebooks/documents"), cwd=here)
    assert asked.code == 3, asked.err
    notes = asked.err.splitlines()
    assert notes[0].startswith("Model: offline. It is not a language model")
    assert "OPENAI_API_KEY" in notes[0]
    assert "Skipped PROVENANCE.md: tells where the other files come from" in asked.err
    assert "Read 7 documents (81 kB): apache-2.0.txt" in asked.err
    assert "  analysis: asks for search_documents (" in asked.err
    assert "-- title --\nWhat GPL-3 and Apache-2.0 ask" in asked.out
    assert 'gpl-3.0.txt, passage 20: "You may convey a covered work in object code form' in asked.out
    assert "- apache-2.0.txt (SHA-256 cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30)" in asked.out
    assert "(7 days left)" in asked.out
    line = next(line for line in asked.out.splitlines() if line.startswith("  standfast approve apr-"))

    answered = script(*line.split()[1:], cwd=elsewhere)
    assert answered.code == 0, answered.err
    published = Path(answered.out.splitlines()[0].removeprefix("Published: "))
    assert published.parent == here / "reports"
    assert published.read_text().startswith("# What GPL-3 and Apache-2.0 ask")
    assert list(elsewhere.iterdir()) == []


def test_json_is_one_object_and_nothing_else_on_stdout(cli: Any, documents: Path) -> None:
    done = cli("run", "Find what must be retained and publish a report", "--docs", str(documents), "--json")
    assert done.code == 3
    assert done.json.keys() >= {"thread_id", "run_id", "status", "outcome", "approvals", "usage"}
    assert done.json["status"] == "waiting"
    assert done.json["approvals"][0]["requested_by"] == "pat"


def test_without_waiting_a_request_is_accepted_and_driven_by_resume(cli: Any, documents: Path, count: Any) -> None:
    accepted = cli(
        "run", "Publish a report on notices", "--docs", str(documents), "--thread", "t", "--no-wait", "--json"
    )
    assert (accepted.code, accepted.json["status"]) == (0, "queued")
    assert count()["operations"] == 0
    resumed = cli("resume", "t", "--json")
    assert (resumed.code, resumed.json["status"]) == (3, "waiting")


def test_a_request_comes_from_standard_input(cli: Any, documents: Path) -> None:
    done = cli("run", "-", "--docs", str(documents), "--json", stdin="Publish a report on “notices”".encode())
    assert done.code == 3
    shown = cli("show", done.json["thread_id"], "--json")
    assert shown.json["runs"][0]["request"] == "Publish a report on “notices”"


BAD_REQUESTS = (
    ("empty", b"", "the request is empty; say what is wanted"),
    ("blank", b" \n\t", "the request is empty; say what is wanted"),
    ("10 MB", b"x" * 10_000_000, "is larger than 4,000,000 bytes"),
    ("too long", b"x" * 1_000_001, "has 1,000,001 characters, at most 1,000,000"),
    ("NUL", b"publish\0a report", "has a NUL character at position 7"),
    ("binary", b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is not UTF-8 text (at byte 8)"),
    ("not UTF-8", "für alle".encode("latin-1"), "is not UTF-8 text (at byte 1)"),
)


def test_a_bad_request_is_refused_in_one_sentence(cli: Any, count: Any) -> None:
    for what, stdin, sentence in BAD_REQUESTS:
        done = cli("run", "-", "--model", "offline", stdin=stdin)
        assert (done.code, done.out) == (2, ""), what
        assert done.err.splitlines()[-1].startswith("standfast: the request "), what
        assert sentence in done.err.splitlines()[-1], what
    assert set(count().values()) == {0}


BAD_THREAD_IDS = (
    ("empty", "", "must not be empty"),
    ("10 kB", "x" * 10_000, "at most 255 characters, not 10000"),
    ("NUL", "a\0b", "must be printable"),
    ("line break", "a\nb", "must be printable"),
    ("space", " a", "not begin or end with a space"),
    ("not UTF-8", "a\udcff", "must be printable"),
)


def test_a_bad_thread_id_is_refused_everywhere(cli_alone: Any) -> None:
    for what, thread, sentence in BAD_THREAD_IDS:
        for command in (["run", "Publish a report", "--thread"], ["resume"], ["show"], ["cancel"]):
            done = cli_alone(*command, thread)
            assert done.code == 2, (command, what)
            assert sentence in done.sentence, (command, what)


def test_uuids_numbers_and_any_script_are_thread_ids(cli: Any, documents: Path) -> None:
    for thread in (str(uuid.UUID(int=7)), "42", "größer/とても"):
        done = cli("run", "Publish a report on notices", "--docs", str(documents), "--thread", thread, "--json")
        assert (done.code, done.json["thread_id"]) == (3, thread)
        assert cli("show", thread, "--json").json["thread_id"] == thread


def test_a_second_request_while_one_waits_names_the_line_that_carries_on(
    cli: Any, propose: Callable[[str], str], count: Any
) -> None:
    propose("t")
    before = count()
    done = cli("run", "Something else", "--thread", "t")
    assert done.code == 2
    assert done.err.endswith("nothing was started. Carry it on with: standfast resume t\n")
    assert before == count()


def test_an_unknown_model_and_a_missing_key_are_refused(cli: Any, count: Any) -> None:
    unknown = cli("run", "Publish a report", "--model", "gpt")
    assert (unknown.code, unknown.sentence) == (2, "standfast: there is no model 'gpt'; use offline or openai:NAME")
    without_key = cli("run", "Publish a report", "--model", "openai:gpt-4.1-mini")
    assert (without_key.code, "needs OPENAI_API_KEY" in without_key.sentence) == (2, True)
    assert count()["threads"] == 0


def test_documents_that_are_not_there_are_refused(cli: Any, count: Any, tmp_path: Path) -> None:
    done = cli("run", "Publish a report", "--docs", str(tmp_path / "nowhere"))
    assert done.code == 2
    assert "cannot be read: No such file or directory" in done.err
    (tmp_path / "image.txt").write_bytes(b"\x89PNG\0\0")
    nothing = cli("run", "Publish a report", "--docs", str(tmp_path / "image.txt"))
    assert nothing.code == 2
    assert "no readable document" in nothing.err.splitlines()[-1]
    assert count()["threads"] == 0


def test_a_place_for_reports_that_is_not_a_folder_is_refused(cli: Any, count: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = cli("run", "Publish a report", "--reports", str(tmp_path / "file" / "reports"))
    assert done.code == 2
    assert done.err.endswith(f"{str(tmp_path / 'file')!r} is not a folder\n")
    assert count()["threads"] == 0


def test_a_folder_for_reports_without_permission_is_refused(
    environment: None, script_path: str, count: Any, open_directory: Path
) -> None:
    closed = open_directory / f"closed-{uuid.uuid4().hex}"
    closed.mkdir(mode=0o555)
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []  # root may all else
    done = subprocess.run(
        [*powerless, script_path, "run", "Publish a report", "--reports", str(closed / "reports")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no permission in {str(closed)!r}" in done.stderr.splitlines()[-1]
    assert count()["threads"] == 0


def test_ones_own_graph_takes_fields_of_its_state(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting_agent.py").write_text(
        "from typing import TypedDict\n"
        "from langgraph.graph import END, START, StateGraph\n"
        "from langgraph.types import interrupt\n"
        "class State(TypedDict):\n    number: int\n    answer: str\n"
        "def ask(state):\n    return {'answer': interrupt({'how many': state['number']})}\n"
        "def build():\n    graph = StateGraph(State)\n    graph.add_node('ask', ask)\n"
        "    graph.add_edge(START, 'ask')\n    graph.add_edge('ask', END)\n    return graph\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    graph = ("--graph", "counting_agent:build")

    asked = cli("run", '{"number": 3}', "--thread", "own", *graph)
    assert asked.code == 3, asked.err
    assert '{"how many": 3}' in asked.out
    assert 'standfast resume own "..." --graph counting_agent:build' in asked.out

    without = cli("resume", "own", "--json")
    assert (without.code, without.json["status"]) == (3, "waiting")
    answered = cli("resume", "own", '["seven", 7]', "--json-answer", *graph, "--json")
    assert (answered.code, answered.json["status"]) == (0, "succeeded")
    state = cli("show", "own", "--json").json
    assert ["seven", 7] == state["waits"][0]["answer"]
    assert "pat" == state["waits"][0]["answered_by"]


def test_a_command_and_show_say_the_same_of_what_is_waited_for(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeping_agent.py").write_text(
        "from datetime import timedelta\n"
        "from typing import TypedDict\n"
        "from langgraph.graph import START, StateGraph\n"
        "from standfast.graph import sleep\n"
        "class State(TypedDict, total=False):\n    number: int\n"
        "async def nap(state):\n    await sleep(for_=timedelta(days=1))\n"
        "graph = StateGraph(State)\ngraph.add_node('nap', nap)\ngraph.add_edge(START, 'nap')\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    waiting = cli("run", "{}", "--thread", "tired", "--graph", "sleeping_agent:graph")
    assert waiting.code == 3, waiting.err
    said = re.fullmatch(r"Waiting for (its time until .*), at nap\.\n", waiting.out)
    assert said is not None, waiting.out
    shown = cli("show", "tired")
    assert (0, True) == (shown.code, f"It waits for {said[1]}." in shown.out)


def test_a_graph_that_cannot_be_loaded_is_refused(cli_alone: Any) -> None:
    for graph, sentence in (
        ("nonsense", "takes MODULE:ATTR"),
        ("no_such_module_here:graph", "there is no module 'no_such_module_here'"),
        ("json:nothing", "has no attribute 'nothing'"),
        ("json:loads", "calling it raised TypeError"),
        ("json:decoder", "is module, not a StateGraph"),
    ):
        done = cli_alone("run", "Hello", "--graph", graph)
        assert done.code == 2, graph
        assert sentence in done.sentence, graph
