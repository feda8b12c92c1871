"""`threads`, `approvals`, `show`, `doctor`, `migrate`, and how every command fails."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

Propose = Callable[..., str]


def test_a_timeline_tells_who_asked_what_ran_and_who_decided(cli: Any, propose: Propose) -> None:
    identifier = propose()
    waiting = cli("show", "t")
    assert waiting.code == 0
    assert f"standfast approve {identifier}" in waiting.out
    cli("approve", identifier, "--as", "alex", "--reason", "well done")
    shown = cli("show", "t").out
    assert shown.startswith("Thread t: succeeded\n")
    for claim in (
        r"accepted  run 1, from robin \(on the caller's word\), model offline, 1 document: Compare what",
        r"model     offline: asks for search_documents",
        r"step      1: analysis",
        r"operation read_document plain.txt",
        rf"asked     {identifier} to publish_report, valid until .* \[approved\]",
        rf"decided   {identifier} approved by alex \(on the caller's word\): well done",
        r"done      publish_report: .*/reports/",
        r"ended     run 1 succeeded",
    ):
        assert re.search(claim, shown), claim
    times = re.findall(r"^(\d\d:\d\d:\d\d\.\d)  ", shown, re.MULTILINE)
    assert times == sorted(times)


def test_the_timeline_as_json_is_one_object(cli: Any, propose: Propose) -> None:
    cli("approve", propose())
    shown = cli("show", "t", "--json").json
    assert shown.keys() >= {"thread_id", "status", "outcome", "steps", "operations", "approvals", "runs"}
    assert ("t", "succeeded", "done") == (shown["thread_id"], shown["status"], shown["outcome"]["status"])
    published = [one for one in shown["operations"] if one["name"] == "publish_report"]
    assert [1] == [len(one["attempts"]) for one in published]
    assert "succeeded" == published[0]["attempts"][0]["state"]
    assert {"analysis": 1} == shown["steps"][2]["nodes"]
    assert {"record": 1} == shown["steps"][-1]["nodes"]


def test_a_run_is_followed_from_any_event_and_in_the_end_all_was_told(cli: Any, propose: Propose) -> None:
    identifier = propose()
    waiting = cli("show", "t", "--follow", "--json")
    told = [json.loads(line) for line in waiting.out.splitlines()]
    assert [*range(1, len(told) + 1)] == [one["seq"] for one in told]
    assert ("run_begin", "run_wait") == (told[0]["kind"], told[-1]["kind"])
    cli("approve", identifier)
    rest = cli("show", "t", "--follow", "--after", str(told[-1]["seq"])).out.splitlines()
    assert rest[0].split()[0] == str(len(told) + 1)
    assert "run_end" in rest[-1]
    assert 2 == len(cli("show", "t", "--follow", "--after", "-2").out.splitlines())
    assert 2 == cli("show", "nobody", "--follow").code


def test_approvals_are_listed_while_they_are_open(cli: Any, propose: Propose) -> None:
    assert cli("approvals").err == "No approval is open.\n"
    identifier = propose()
    assert identifier in cli("approvals").out
    found = cli("approvals", "--json").json
    assert [identifier] == [one["id"] for one in found]
    assert found[0].keys() >= {"id", "thread_id", "operation", "arguments", "digest", "requested_at", "expires_at"}
    cli("reject", identifier, "--reason", "no")
    assert [] == cli("approvals", "--json").json
    assert [identifier] == [one["id"] for one in cli("approvals", "--all", "--thread", "t", "--json").json]


def test_a_thread_that_waits_for_an_event_says_for_which(cli: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "patient_agent.py").write_text(
        "from typing import TypedDict\n"
        "from langgraph.graph import END, START, StateGraph\n"
        "from standfast.tools.waits import wait_for_event\n"
        "class State(TypedDict):\n    paid: str\n"
        "async def wait(state):\n    await wait_for_event('payment')\n    return {'paid': 'yes'}\n"
        "graph = StateGraph(State)\n"
        "graph.add_node('wait', wait)\ngraph.add_edge(START, 'wait')\ngraph.add_edge('wait', END)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = cli("run", '{"paid": "no"}', "--thread", "t", "--graph", "patient_agent:graph")
    assert done.code == 3, done.err
    assert done.out.startswith(
        "Waiting for event 'payment', at wait.\nTo emit it: standfast emit payment [JSON] --id ID"
    )
    assert "It waits for event 'payment'" in cli("show", "t").out
    assert "payment" == cli("show", "t", "--json").json["waits"][0]["name"]


def test_threads_are_listed_newest_first(cli: Any, propose: Propose) -> None:
    assert cli("threads").err.startswith("There are no threads yet")
    propose("first"), propose("second")
    assert ["second", "first"] == [one["thread_id"] for one in cli("threads", "--json").json]
    assert 1 == len(cli("threads", "--limit", "1", "--json").json)
    assert re.search(r"^second +waiting +agent ", cli("threads").out, re.MULTILINE)


def test_nothing_that_is_shown_can_move_the_cursor(cli: Any, documents: Path) -> None:
    request = "Publish a report on notices \x1b[2K\r\u202eevil"
    asked = cli("run", request, "--docs", str(documents), "--thread", "t")
    for shown in (asked.out, cli("show", "t").out, cli("approvals").out):
        assert re.search("[\x1b\r\u202e]", shown) is None
    assert r"notices \x1b[2K" in asked.out
    assert r"\u202eevil" in asked.out


def test_the_doctor_finds_a_healthy_database(cli: Any, database_url: str) -> None:
    done = cli("doctor", "--json")
    assert done.code == 0, done.out
    checks = {one["name"]: one for one in done.json["checks"]}
    assert {"python", "packages", "database", "server", "schema", "model", "reports"} <= checks.keys()
    assert "STANDFAST_DATABASE_URL" in checks["database"]["detail"]
    assert "up to date" in checks["schema"]["detail"]
    assert "OPENAI_API_KEY is not set" in checks["model"]["detail"]


def test_the_doctor_names_what_is_broken_and_shows_no_password(
    cli_alone: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "reports").touch()
    monkeypatch.setenv("STANDFAST_REPORTS_DIR", str(tmp_path / "reports"))
    monkeypatch.setenv("STANDFAST_DATABASE_URL", "postgresql://me:hunter2@127.0.0.1:1/db")
    monkeypatch.setenv("STANDFAST_MODEL", "gpt")
    monkeypatch.setenv("STANDFAST_REPORTS_DIR", str(tmp_path / "reports"))
    done = cli_alone("doctor")
    assert done.code == 1
    assert ["server", "model", "reports"] == re.findall(r"^broken  (\w+)", done.out, re.MULTILINE)
    assert "hunter2" not in done.out + done.err


def test_the_doctor_notes_what_is_wrong_with_the_place_alone_and_settings_that_are_none(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").touch()  # reports would go to ./reports
    monkeypatch.setenv("STANDFAST_DATABASEURL", "postgresql://db.example/agents")
    monkeypatch.setenv("STANDFAST_PG_BIN", "/usr/lib/postgresql/18/bin")
    done = cli("doctor")
    assert done.code == 0, done.out
    assert ["settings", "reports"] == re.findall(r"^note  +(\w+)", done.out, re.MULTILINE)
    assert "STANDFAST_DATABASEURL is no setting; STANDFAST_DATABASE_URL is" in done.out


def test_migrate_makes_the_schema_once(cli_alone: Any, empty_database_url: str) -> None:
    doctor = cli_alone("doctor", "--database", empty_database_url, "--json").json
    assert "not there yet" in next(one["detail"] for one in doctor["checks"] if one["name"] == "schema")
    first = cli_alone("--database", empty_database_url, "migrate", "--json")
    assert (first.code, "001_foundation.sql" in first.json) == (0, True)
    second = cli_alone("migrate", "--database", empty_database_url)
    assert (second.code, second.out) == (0, "The schema is up to date.\n")


EVERY_COMMAND = (
    ["run", "Publish a report"],
    ["approvals"],
    ["approve", "apr-1"],
    ["reject", "apr-1", "--reason", "no"],
    ["edit", "apr-1", "--set", "a=1"],
    ["resume", "t"],
    ["threads"],
    ["show", "t"],
    ["cancel", "t"],
    ["migrate"],
)


def test_every_command_says_in_one_sentence_that_the_database_is_away(cli_alone: Any) -> None:
    for command in EVERY_COMMAND:
        done = cli_alone(*command)
        assert (done.code, done.out) == (1, ""), command
        assert "cannot connect to Postgres at 127.0.0.1:1/db" in done.err.splitlines()[-1]
        assert "hunter2" not in done.err


def test_a_wrong_database_url_is_refused_in_one_sentence(cli_alone: Any) -> None:
    for url in ("nonsense", "http://localhost/db", "postgresql://[::1/db", "", " "):
        done = cli_alone("threads", "--database", url)
        assert done.code == 2, url
        assert re.match("standfast: the database URL (cannot be read|is empty); write postgresql://", done.sentence)


def test_a_wrong_setting_is_named(cli_alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_POOL_SIZE", "many")
    done = cli_alone("threads")
    assert done.code == 2
    assert done.sentence.startswith("standfast: STANDFAST_POOL_SIZE is not usable: ")


@pytest.fixture
def old_server() -> Iterator[str]:
    """A server that says it is Postgres 14, and no more."""
    listener = socket.create_server(("127.0.0.1", 0))

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!i", len(body) + 4) + body

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while True:
                    (size,) = struct.unpack("!i", connection.recv(4))
                    (code,) = struct.unpack("!i", connection.recv(size - 4)[:4])
                    if code == 196608:
                        break
                    connection.sendall(b"N")  # neither TLS nor GSS
                connection.sendall(
                    message(b"R", struct.pack("!i", 0))
                    + message(b"S", b"server_version\x0014.9\x00")
                    + message(b"S", b"client_encoding\x00UTF8\x00")
                    + message(b"Z", b"I")
                )
                while connection.recv(1024):
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    with closing(listener):
        yield f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/db"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_server_that_is_too_old_is_refused(cli_alone: Any, old_server: str) -> None:
    done = cli_alone("threads", "--database", old_server)
    assert done.code == 2
    assert re.search(r"Postgres 14 at .* is too old; Standfast needs 15 or newer", done.sentence)


def test_wrong_usage_is_one_sentence(cli_alone: Any) -> None:
    for arguments, sentence in (
        (["frobnicate"], "No such command 'frobnicate'; see: standfast --help"),
        (["run"], "Missing argument 'REQUEST'; see: standfast run --help"),
        (["reject", "apr-1"], "Missing option '--reason'; see: standfast reject --help"),
        (["threads", "--limit", "0"], "Invalid value for '--limit': Input should be greater than or equal to 1"),
        (["db", "destroy"], "No such command 'destroy'; see: standfast db --help"),
        (["--database"], "Option '--database' requires an argument; see: standfast --help"),
    ):
        done = cli_alone(*arguments)
        assert done.code == 2, arguments
        assert done.sentence.startswith(f"standfast: {sentence}"), arguments


def test_help_and_version_need_neither_langgraph_nor_a_database(bare_environment: None) -> None:
    program = (
        "import sys; from standfast.graph.cli.app import run_app\n"
        "lines = ([], ['--version'], ['run', '--help'], ['db'], ['db', 'status', '--json'])\n"
        "codes = [run_app(line) for line in lines]\n"
        "print(codes, [name for name in ('langgraph', 'langchain_core', 'openai') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] in ("[0, 0, 0, 0, 0] []", "[0, 0, 0, 0, 1] []")


def test_a_pipe_that_closes_early_and_a_plain_terminal_are_quiet(
    script: Any, propose: Propose, script_path: str
) -> None:
    propose()
    piped = subprocess.run(
        f"{script_path} show t --json | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, "{\n", "")
    narrow = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    ascii_only = script("edit", "größe", "--set", "title=ü", env=narrow)
    assert (ascii_only.code, ascii_only.out) == (2, "")
    assert ascii_only.err.startswith("standfast: there is no approval 'gr")
