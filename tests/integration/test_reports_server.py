"""The reports API of the tests: idempotency keys as receivers honour them, effects that can be counted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from tests.servers.fixtures import Eventually
from tests.servers.reports import Mode, ReportsServer
from tests.servers.scripted import Failure, Step

BODY = {"title": "Tides", "pages": 3}
KEY = {"Idempotency-Key": "op-1"}


@pytest.fixture
def http(reports_server: ReportsServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=reports_server.url, timeout=2.0) as client:
        yield client


def bodies(server: ReportsServer) -> list[Any]:
    return [line["report"]["body"] for line in server.effects()]


def test_the_same_key_and_body_get_the_first_answer_again(reports_server: ReportsServer, http: httpx.Client) -> None:
    first = http.post("/reports", json=BODY, headers=KEY)
    again = http.post("/reports", content='{"pages": 3,   "title": "Tides"}', headers=KEY)
    assert (201, 200) == (first.status_code, again.status_code)
    assert (None, "true") == tuple(r.headers.get("idempotent-replayed") for r in (first, again))
    assert first.json() == again.json()
    assert [BODY] == bodies(reports_server)


@pytest.mark.parametrize("conflict", [409, 422])
def test_the_same_key_with_another_body_is_refused(tmp_path: Path, conflict: Literal[409, 422]) -> None:
    with (
        ReportsServer(tmp_path / "log", conflict=conflict) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        http.post("/reports", json=BODY, headers=KEY)
        refused = http.post("/reports", json={**BODY, "pages": 4}, headers=KEY)
        assert (conflict, "idempotency_key_reused") == (refused.status_code, refused.json()["error"]["code"])
        assert [BODY] == bodies(server)


@pytest.mark.parametrize(
    ("mode", "headers", "statuses", "effects"),
    [
        ("deduplicates", {}, [201, 201], 2),
        ("requires_key", {}, [400, 400], 0),
        ("requires_key", KEY, [201, 200], 1),
        ("ignores_key", KEY, [201, 201], 2),
    ],
)
def test_the_mode_says_what_a_repeated_request_does(
    tmp_path: Path, mode: Mode, headers: dict[str, str], statuses: list[int], effects: int
) -> None:
    with ReportsServer(tmp_path / "log", mode=mode) as server, httpx.Client(base_url=server.url) as http:
        assert [http.post("/reports", json=BODY, headers=headers).status_code for _ in range(2)] == statuses
        assert effects == len(server.effects())
        assert 2 == len(server.requests())


def test_requests_at_once_with_one_key_have_one_effect(reports_server: ReportsServer, http: httpx.Client) -> None:
    reports_server.script(Step(delay_effect=0.05, times=8))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: http.post("/reports", json=BODY, headers=KEY), range(8)))
    assert [200] * 7 + [201] == sorted(answer.status_code for answer in answers)
    assert 1 == len(reports_server.effects())


def test_reports_are_listed_and_found_by_key_and_id(http: httpx.Client) -> None:
    keyed = http.post("/reports", json=BODY, headers=KEY).json()
    plain = http.post("/reports", json=BODY).json()
    assert [keyed, plain] == http.get("/reports").json()["reports"]
    assert [keyed] == http.get("/reports", params={"idempotency_key": "op-1"}).json()["reports"]
    assert [] == http.get("/reports", params={"idempotency_key": "op-2"}).json()["reports"]
    assert plain == http.get(f"/reports/{plain['id']}").json()
    assert 404 == http.get("/reports/report-9").status_code


def test_an_effect_whose_answer_is_lost_stands(reports_server: ReportsServer, http: httpx.Client) -> None:
    reports_server.script(Step(fail="reset", performed=True))
    with pytest.raises(httpx.ReadError):
        http.post("/reports", json=BODY, headers=KEY)
    assert [BODY] == bodies(reports_server)
    again = http.post("/reports", json=BODY, headers=KEY)
    assert (200, "true") == (again.status_code, again.headers["idempotent-replayed"])
    assert 1 == len(reports_server.effects())


def test_an_effect_can_come_after_its_client_has_given_up(
    reports_server: ReportsServer, http: httpx.Client, eventually: Eventually
) -> None:
    reports_server.script(Step(delay_effect=0.5))
    with pytest.raises(httpx.ReadTimeout):
        http.post("/reports", json=BODY, headers=KEY, timeout=0.1)
    gave_up = time.time()
    eventually(lambda: http.get("/reports").json()["reports"] != [])
    [effect] = reports_server.effects()
    assert gave_up < effect["time"]


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Step(fail="hang"), httpx.ReadTimeout),
        (Step(fail="hang", after=1), httpx.ReadTimeout),
        (Step(delay_answer=0.6), httpx.ReadTimeout),
        (Step(fail="reset"), httpx.ReadError),
        (Step(fail="reset", after=1), httpx.ReadError),
        (Step(fail="cut"), httpx.RemoteProtocolError),
        (Step(fail="cut", after=1), httpx.RemoteProtocolError),
        (Step(fail="truncated", after=1), json.JSONDecodeError),
        (Step(fail="malformed_json"), json.JSONDecodeError),
        (Step(fail="empty_body"), json.JSONDecodeError),
        (Step(fail="wrong_content_type"), json.JSONDecodeError),
    ],
)
def test_each_breakage_is_what_the_client_sees(
    reports_server: ReportsServer, http: httpx.Client, step: Step, error: type[Exception]
) -> None:
    reports_server.script(step)
    with pytest.raises(error):
        http.post("/reports", json=BODY, headers=KEY, timeout=0.2).json()
    assert (0 if step.fail else 1) == len(reports_server.effects())


@pytest.mark.parametrize("performed", [False, True])
@pytest.mark.parametrize("fail", ["reset", "cut", "truncated", "malformed_json", "empty_body"])
def test_a_breakage_has_an_effect_only_if_the_step_says_so(
    reports_server: ReportsServer, http: httpx.Client, fail: Failure, performed: bool
) -> None:
    reports_server.script(Step(fail=fail, performed=performed))
    with pytest.raises((httpx.TransportError, ValueError)):
        http.post("/reports", json=BODY).json()
    assert int(performed) == len(reports_server.effects())


def test_steps_are_followed_in_order_one_per_request(reports_server: ReportsServer, http: httpx.Client) -> None:
    reports_server.script(
        Step(status=503, retry_after=3),
        Step(status=500, performed=True),
        Step(status=429, retry_after="Wed, 21 Oct 2037 07:28:00 GMT"),
        Step(method="GET", when="/reports", status=502),
    )
    answers = [http.post("/reports", json=BODY, headers=KEY) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [503, 500, 429, 200]
    assert ["3", None, "Wed, 21 Oct 2037 07:28:00 GMT", None] == [a.headers.get("retry-after") for a in answers]
    assert [http.get("/reports").status_code for _ in range(2)] == [502, 200]
    assert [BODY] == bodies(reports_server)


def test_a_server_on_an_old_log_knows_its_keys(tmp_path: Path) -> None:
    with ReportsServer(tmp_path / "log") as server, httpx.Client(base_url=server.url) as http:
        first = http.post("/reports", json=BODY, headers=KEY).json()
    with ReportsServer(tmp_path / "log") as server, httpx.Client(base_url=server.url) as http:
        assert first == http.post("/reports", json=BODY, headers=KEY).json()
        assert "report-2" == http.post("/reports", json=BODY).json()["id"]
        assert 2 == len(server.effects())
