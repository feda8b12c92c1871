"""What holds for every test server: the script, the log, the end, and life as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import pytest

from tests.servers.fixtures import Eventually
from tests.servers.openai import OpenAIServer, Reply, ToolCall
from tests.servers.process import ServerProcess
from tests.servers.reports import ReportsServer
from tests.servers.scripted import Log, Step, http_date, read_log

KEY = {"Idempotency-Key": "op-1"}
ROOT = Path(__file__).parents[2]
POSTS_A_REPORT = "import httpx, sys; httpx.post(sys.argv[1], json={'n': 1}, timeout=30)"
STARTS_A_SERVER = """
import pathlib, sys, time
from tests.servers.process import ServerProcess
server = ServerProcess("reports", pathlib.Path(sys.argv[1]))
print(server.url, flush=True)
time.sleep(60)
"""


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(
    "mistake",
    [
        {"fial": "reset"},
        {"fail": "explode"},
        {"status": 200},
        {"status": "500"},
        {"status": 500, "fail": "reset"},
        {"retry_after": 1},
        {"performed": True},
        {"times": 0},
        {"delay_answer": -1},
        {"method": "PUT"},
        "reset",
    ],
)
def test_a_mistake_in_a_script_is_refused_and_nothing_is_added(reports_server: ReportsServer, mistake: object) -> None:
    with httpx.Client(base_url=reports_server.url) as http:
        refused = http.post("/script", json=[{"status": 500}, mistake])
        assert (400, "bad_script") == (refused.status_code, refused.json()["error"]["code"])
        assert {"remaining": 0} == http.get("/script").json()


def test_the_script_can_be_read_and_dropped_and_is_not_logged(reports_server: ReportsServer) -> None:
    with httpx.Client(base_url=reports_server.url) as http:
        steps = [{"status": 500, "times": 3}, {"status": 503, "times": None}]
        assert {"remaining": 3} == http.post("/script", json=steps).json()
        assert 500 == http.post("/reports", json={}).status_code
        assert {"remaining": 2} == http.get("/script").json()
        assert {"remaining": 0} == http.delete("/script").json()
        assert 201 == http.post("/reports", json={}).status_code
    assert ["/reports", "/reports"] == [line["path"] for line in reports_server.requests()]


def test_replies_come_from_json_as_they_come_from_python() -> None:
    call = {"name": "send", "arguments": {"to": "a"}, "id": "c1"}
    assert Reply(
        calls=(ToolCall(name="send", arguments={"to": "a"}, id="c1"),), usage=(3, 4), fail="cut", after=2
    ) == Reply.parse({"calls": [call], "usage": [3, 4], "fail": "cut", "after": 2})
    with pytest.raises(ValueError, match="nmae"):
        Reply.parse({"calls": [{"nmae": "send"}]})


def test_an_http_date_is_read_back_as_the_time_meant() -> None:
    assert abs(parsedate_to_datetime(http_date(90)).timestamp() - time.time() - 90) <= 1.5


def test_a_line_of_the_log_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append("effect", n=1)
    log.append("request", n=2)
    log.append("effect", n=3)
    log.close()
    with (tmp_path / "log").open("a") as file:
        file.write('{"kind": "effect", "n"')
    assert [1, 3] == [line["n"] for line in read_log(tmp_path / "log", "effect")]


def test_a_request_that_breaks_off_is_no_request(reports_server: ReportsServer) -> None:
    port = int(reports_server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(b"POST /reports HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        connection.shutdown(socket.SHUT_WR)
        assert b"" == connection.recv(1)
    assert [] == reports_server.requests()


def test_a_fault_of_the_script_is_raised_when_the_server_stops(tmp_path: Path) -> None:
    def clumsy(request: object) -> Step:
        raise LookupError("no such case")

    server = ReportsServer(tmp_path / "log")
    server.start()
    server.script(clumsy)
    try:
        assert 500 == httpx.post(f"{server.url}/reports", json={}).status_code
    finally:
        with pytest.raises(ExceptionGroup) as caught:
            server.stop()
    assert caught.group_contains(LookupError, match="no such case")


@pytest.mark.parametrize(
    "step", [Step(fail="hang"), Step(fail="hang", after=1), Step(delay_effect=60), Step(delay_answer=60)]
)
def test_a_stop_ends_what_hangs_and_leaves_no_thread(tmp_path: Path, step: Step, eventually: Eventually) -> None:
    before = set(threading.enumerate())
    server = ReportsServer(tmp_path / "log")
    server.start()
    server.script(step)
    outcomes: list[Any] = []

    def post() -> None:
        try:
            outcomes.append(httpx.post(f"{server.url}/reports", json={}, timeout=30))
        except httpx.TransportError as error:
            outcomes.append(error)

    client = threading.Thread(target=post)
    client.start()
    eventually(lambda: len(server.requests()) == 1)
    began = time.monotonic()
    server.stop()
    client.join(2)
    assert time.monotonic() - began < 1
    assert [type(outcome) for outcome in outcomes] == [httpx.RemoteProtocolError]
    assert before == set(threading.enumerate())


def test_idle_connections_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    with httpx.Client() as http:
        with OpenAIServer(tmp_path / "log") as server:
            assert 200 == http.get(f"{server.url}/v1/models").status_code
            began = time.monotonic()
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_process_prints_its_url_and_ends_well_on_a_signal(tmp_path: Path, end: signal.Signals) -> None:
    program = ROOT / "tests" / "servers" / "reports.py"
    command = [sys.executable, str(program), "--port", "0", "--log", str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            assert 201 == httpx.post(f"{url}/reports", json={}).status_code
        finally:
            process.send_signal(end)
        assert 0 == process.wait(5)


def test_a_process_answers_the_chat_protocol_from_a_json_script(openai_process: ServerProcess) -> None:
    openai_process.script({"text": "Low water at nine."}, {"status": 429, "retry_after": 2})
    url, body = f"{openai_process.url}/v1/chat/completions", {"model": "m", "messages": [{"role": "user"}]}
    answer, refused = httpx.post(url, json=body), httpx.post(url, json=body)
    assert "Low water at nine." == answer.json()["choices"][0]["message"]["content"]
    assert (429, "2") == (refused.status_code, refused.headers["retry-after"])
    assert 2 == len(openai_process.requests())
    with pytest.raises(HTTPError):
        openai_process.script({"txet": "Low water at nine."})


def test_the_count_survives_a_client_that_is_killed(reports_process: ServerProcess, eventually: Eventually) -> None:
    reports_process.script({"fail": "hang", "performed": True})
    command = [sys.executable, "-c", POSTS_A_REPORT, f"{reports_process.url}/reports"]
    with subprocess.Popen(command) as client:
        eventually(lambda: len(reports_process.effects()) == 1, 20)
        client.kill()
    assert (1, 1) == (len(reports_process.requests()), len(reports_process.effects()))
    assert 200 == httpx.get(f"{reports_process.url}/reports").status_code


def test_a_killed_server_goes_on_with_what_it_had_promised(tmp_path: Path) -> None:
    with ServerProcess("reports", tmp_path / "log", "--conflict", "409") as first:
        made = httpx.post(f"{first.url}/reports", json={"n": 1}, headers=KEY).json()
        first.kill()
    with ServerProcess("reports", tmp_path / "log", "--conflict", "409", port=first.port) as second:
        assert first.url == second.url
        assert made == httpx.post(f"{second.url}/reports", json={"n": 1}, headers=KEY).json()
        assert 409 == httpx.post(f"{second.url}/reports", json={"n": 2}, headers=KEY).status_code
        assert 1 == len(second.effects())


def test_a_process_ends_with_the_test_run_that_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    command = [sys.executable, "-c", STARTS_A_SERVER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        port = int(run.stdout.readline().rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
        run.kill()
    eventually(lambda: refuses(port))


def test_a_process_begins_with_the_script_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('[{"status": 503}]')
    with ServerProcess("reports", tmp_path / "log", "--script", str(tmp_path / "script.json")) as server:
        assert [httpx.post(f"{server.url}/reports", json={}).status_code for _ in range(2)] == [503, 201]


def test_a_server_that_cannot_start_says_so(tmp_path: Path, reports_server: ReportsServer) -> None:
    taken = int(reports_server.url.rpartition(":")[2])
    with pytest.raises(RuntimeError, match="printed no URL"):
        ServerProcess("reports", tmp_path / "log", port=taken)
