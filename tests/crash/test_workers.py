"""Workers that are killed, stopped and cut off from their database: nothing is lost, and the others go on."""

from __future__ import annotations

import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.graph import Runtime
from tests.crash.support import work_graphs
from tests.crash.support.fleet import Fleet, Forge
from tests.crash.support.work_graphs import Line, read
from tests.servers.fixtures import Eventually

LEASE = 1.5
SHORT = 1.0
MUTE = "create or replace function ring_1(thread text) returns void language sql as 'select'"
SWEEP = 1.5  # the bar of a takeover, after the lease: a sweep and a claim
KILLS = 10
GRACE = 10.0

Query = Callable[..., list[tuple[Any, ...]]]


class Place:
    """Submits to the test's database, and reads what the graphs have written."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self.runtime = runtime
        self._folder = folder

    def submit(self, graph: str, thread: str, **state: Any) -> None:
        self.runtime.name = graph
        self.runtime.submit({"log": str(self._folder / thread), **state}, thread_id=thread)

    def lines(self, thread: str) -> list[Line]:
        return read(self._folder / thread)

    def counted(self, thread: str) -> Counter[str]:
        return Counter(line.what for line in self.lines(thread))

    def result(self, thread: str, timeout: float = 40.0) -> Any:
        return self.runtime.result(thread, timeout=timeout)

    def status(self, thread: str) -> str:
        [known] = [one for one in self.runtime.threads(limit=1000) if one.id == thread]
        return str(known.status)


@pytest.fixture
def place(database_url: str, tmp_path: Path) -> Iterator[Place]:
    with Runtime(work_graphs.steps(), database_url=database_url) as runtime:
        yield Place(runtime, tmp_path)


@pytest.fixture
def fleet(forge: Forge, database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(forge, database_url, tmp_path, lease=LEASE) as fleet:
        yield fleet


@pytest.fixture
def quick(forge: Forge, database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Workers with a shorter lease, for what takes many of them."""
    with Fleet(forge, database_url, tmp_path, lease=SHORT) as fleet:
        yield fleet


def left_behind(query: Query) -> list[tuple[Any, ...]]:
    """Whatever a worker holds: leases, and its own row."""
    return [
        *query("select id from threads where lease_holder is not null"),
        *query("select name from workers"),
    ]


def _begun(place: Place, thread: str, number: int) -> bool:
    return place.counted(thread)[f"begin {number}"] == 1


# -- killed


@pytest.mark.timeout(120)
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G2")
def test_a_run_whose_worker_is_killed_is_carried_on_by_another_ten_times_in_a_row(
    fleet: Fleet, place: Place, eventually: Eventually
) -> None:
    workers = {one.pid: one for one in (fleet.worker("steps"), fleet.worker("steps"))}
    begun, took = [], []
    for number in range(KILLS):
        thread = f"killed-{number}"
        submitted = time.time()
        place.submit("steps", thread, steps=6, seconds=0.2)
        eventually(partial(_begun, place, thread, 3), seconds=20)
        begun.append(place.lines(thread)[0].at - submitted)
        victim = workers.pop(place.lines(thread)[-1].pid)
        killed = victim.kill()
        spare = fleet.worker("steps", ready=False)
        workers[spare.pid] = spare
        assert "succeeded" == place.result(thread).status
        after = [line for line in place.lines(thread) if line.at > killed and line.pid != victim.pid]
        took.append(after[0].at - killed)
        counted = place.counted(thread)
        assert {f"end {step}": 1 for step in range(6)} == {k: n for k, n in counted.items() if k.startswith("end")}
        assert {1} == {counted[f"begin {step}"] for step in range(3)}, "a finished step ran again"

    noise = statistics.median(begun)
    print(f"took over after {sorted(round(one, 2) for one in took)} s; lease {LEASE} s, submit to step {noise:.2f} s")
    assert max(took) < LEASE + SWEEP + 5 * noise


@pytest.mark.guarantee("G1")
def test_five_crashes_in_a_row_park_the_run_with_its_history_and_leave_nothing_busy(
    quick: Fleet, place: Place, eventually: Eventually, query: Query
) -> None:
    place.submit("dying", "doomed")
    for _ in range(5):
        worker = quick.worker("dying")
        assert -signal.SIGKILL == worker.wait()
    quick.worker("dying")
    parked = place.result("doomed")

    assert "needs_attention" == parked.status
    assert "5 drivers in a row died on it" in parked.reason
    assert Counter(died=5) == place.counted("doomed")
    kinds = [event.kind for event in place.runtime.stream("doomed")]
    assert ("run_begin", "run_end") == (kinds[0], kinds[-1])
    assert 5 == len({line.pid for line in place.lines("doomed")})
    assert [(None, None, 0)] == query("select lease_holder, due_at, crashes from threads")
    cancelled = place.runtime.cancel("doomed")
    assert "cancelled" == cancelled.status
    place.submit("steps", "other")
    quick.worker("steps")
    assert "succeeded" == place.result("other").status


def test_a_worker_of_the_same_name_as_a_killed_one_is_somebody_else(
    fleet: Fleet, place: Place, eventually: Eventually
) -> None:
    first = fleet.worker("steps", name="one-name")
    place.submit("steps", "t", steps=2, seconds=0.5)
    eventually(lambda: place.counted("t")["begin 0"] == 1, seconds=20)
    killed = first.kill()
    second = fleet.worker("steps", name="one-name")

    assert "succeeded" == place.result("t").status
    taken = next(line for line in place.lines("t") if line.pid == second.pid)
    assert taken.at > killed + LEASE / 3, "the lease of the dead one was not waited for"
    assert ["one-name", "one-name"] == [one.name for one in place.runtime.workers()]


# -- stopped


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("graph", ["steps", "nested"])
def test_a_worker_that_is_told_to_stop_finishes_its_step_and_the_next_one_goes_on_from_there(
    fleet: Fleet, place: Place, eventually: Eventually, query: Query, graph: str
) -> None:
    first = fleet.worker(graph, grace=GRACE)
    place.submit(graph, "t", steps=3, seconds=0.5)
    eventually(lambda: place.counted("t")["begin 0"] == 1, seconds=20)
    began = time.monotonic()
    first.signal(signal.SIGTERM)

    assert 0 == first.wait()
    assert time.monotonic() - began < GRACE
    assert Counter({"begin 0": 1, "end 0": 1}) == place.counted("t")
    assert [] == left_behind(query)
    assert [1] == [one.runs for one in place.runtime.unserved()]

    fleet.worker(graph)
    assert "succeeded" == place.result("t").status
    assert {1} == set(place.counted("t").values())


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("graph", ["steps", "threaded", "blocking"])
def test_a_step_longer_than_the_grace_is_left_to_another_worker(
    fleet: Fleet, place: Place, eventually: Eventually, query: Query, graph: str
) -> None:
    seconds = 3.0
    first = fleet.worker(graph, grace=0.3)
    place.submit(graph, "t", seconds=seconds)
    eventually(lambda: len(place.lines("t")) == 1, seconds=20)
    began = time.monotonic()
    first.signal(signal.SIGTERM)

    assert 0 == first.wait()
    took = time.monotonic() - began
    print(f"a {graph} step of {seconds} s was left after {took:.2f} s")
    if graph != "blocking":  # nobody in the process can act while its loop is held up
        assert took < seconds - 1.0
        assert [] == left_behind(query)
    fleet.worker(graph)
    assert "succeeded" == place.result("t").status


@pytest.mark.guarantee("G7")
def test_a_worker_that_stops_while_a_thread_waits_holds_nothing_of_it(
    fleet: Fleet, place: Place, eventually: Eventually, query: Query
) -> None:
    first = fleet.worker("waiting", "asking")
    place.submit("waiting", "event")
    place.submit("asking", "person")
    assert ["waiting", "waiting"] == [place.result(thread).status for thread in ("event", "person")]
    assert [] == query("select id from threads where lease_holder is not null")
    first.signal(signal.SIGTERM)
    assert 0 == first.wait()
    assert [] == left_behind(query)

    assert 1 == place.runtime.emit("go", "now", id="1")
    fleet.worker("waiting", "asking")
    eventually(lambda: place.status("event") == "succeeded", seconds=20)
    assert "waiting" == place.status("person")


def test_a_second_interrupt_ends_a_worker_at_once(fleet: Fleet, place: Place, eventually: Eventually) -> None:
    worker = fleet.worker("steps")
    place.submit("steps", "t", seconds=20.0)
    eventually(lambda: len(place.lines("t")) == 1, seconds=20)
    worker.signal(signal.SIGINT)
    eventually(lambda: "finishing" in worker.log, seconds=10)
    worker.signal(signal.SIGINT)

    assert 130 == worker.wait(5.0)


# -- slow steps


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(("graph", "leases"), [("blocking", 2.0), ("steps", 3.0)])
def test_a_step_that_takes_longer_than_the_lease_keeps_its_thread(
    fleet: Fleet, place: Place, graph: str, leases: float
) -> None:
    """Beats come from a thread of their own, whether the event loop is free or held up."""
    fleet.worker(graph)
    fleet.worker(graph)
    place.submit(graph, "t", seconds=leases * LEASE)

    assert "succeeded" == place.result("t").status
    assert 2 == len(place.lines("t")), place.lines("t")


@pytest.mark.guarantee("G3")
def test_a_stopped_worker_that_comes_back_after_its_lease_writes_nothing(
    fleet: Fleet, place: Place, eventually: Eventually, query: Query
) -> None:
    first = fleet.worker("steps")
    place.submit("steps", "t", steps=2, seconds=0.5)
    eventually(lambda: place.counted("t")["begin 0"] == 1, seconds=20)
    first.signal(signal.SIGSTOP)
    second = fleet.worker("steps")
    assert "succeeded" == place.result("t").status
    before = query("select checkpoint_id from checkpoints order by 1"), query("select last from run_events order by 1")
    first.signal(signal.SIGCONT)
    eventually(lambda: "LeaseLost" in first.log or "is lost" in first.log, seconds=10)

    after = query("select checkpoint_id from checkpoints order by 1"), query("select last from run_events order by 1")
    assert before == after
    assert second.pid == place.lines("t")[-1].pid or "end 0" == place.lines("t")[-1].what


# -- cancelled


@pytest.mark.parametrize(("graph", "late"), [("steps", []), ("stubborn", ["cancelled", "end"])])
def test_a_cancellation_is_seen_within_a_second_and_no_late_result_revives_the_run(
    fleet: Fleet, place: Place, eventually: Eventually, graph: str, late: list[str]
) -> None:
    fleet.worker(graph)
    place.submit(graph, "t", seconds=30.0)
    eventually(lambda: len(place.lines("t")) == 1, seconds=20)
    began = time.monotonic()
    ended = place.runtime.cancel("t")
    took = time.monotonic() - began

    print(f"cancelled after {took:.2f} s")
    assert "cancelled" == ended.status
    assert took < 2.0
    assert late == [line.what for line in place.lines("t")][1:]
    assert "cancelled" == place.status("t")


# -- the database


def test_a_row_that_somebody_keeps_locked_is_taken_from_him_and_the_log_says_so(
    fleet: Fleet, place: Place, database_url: str
) -> None:
    place.submit("steps", "t")
    with closing(psycopg.connect(database_url, options="-c search_path=standfast")) as stranger:
        stranger.execute("select 1 from threads where id = 't' for update")
        worker = fleet.worker("steps")
        assert "succeeded" == place.result("t").status
        assert "ended the stalled transactions of backends" in worker.log
        assert str(stranger.info.backend_pid) in worker.log


def test_a_table_that_somebody_keeps_locked_is_named_in_the_log_and_waited_for(
    fleet: Fleet, place: Place, eventually: Eventually, database_url: str, tmp_path: Path
) -> None:
    worker = fleet.worker("steps", health_file=tmp_path / "health")
    options = "-c search_path=standfast -c application_name=vacuum-cleaner"
    with psycopg.connect(database_url, options=options) as stranger:
        stranger.execute("lock table workers, threads in access exclusive mode")
        eventually(lambda: "vacuum-cleaner, idle in transaction" in worker.log, seconds=15)
        assert f"backend {stranger.info.backend_pid}" in worker.log
    place.submit("steps", "t")

    assert "succeeded" == place.result("t").status
    assert worker.alive


@pytest.mark.guarantee("G1")
def test_terminated_connections_are_made_again(
    fleet: Fleet, place: Place, eventually: Eventually, query: Query
) -> None:
    worker = fleet.worker("steps")
    place.submit("steps", "t", steps=10, seconds=0.2)
    eventually(lambda: place.counted("t")["begin 2"] == 1, seconds=20)
    for _ in range(3):
        query(
            """select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid()"""
        )
        time.sleep(0.3)

    assert "succeeded" == place.result("t").status
    place.submit("steps", "later")
    assert "succeeded" == place.result("later").status
    assert worker.alive
    assert "terminating connection due to administrator command" in worker.log


@pytest.mark.guarantee("G1")
def test_a_worker_outlives_a_restart_of_its_database_and_says_what_is_wrong(
    forge: Forge, open_directory: Path, tmp_path: Path, eventually: Eventually
) -> None:
    directory = open_directory / "restarted"
    server = EmbeddedPostgres(directory, settings={"fsync": "off"})
    url = server.acquire()
    with Runtime(work_graphs.steps(), database_url=url) as runtime, Fleet(forge, url, tmp_path, lease=LEASE) as fleet:
        place = Place(runtime, tmp_path)
        worker = fleet.worker("steps")
        place.submit("steps", "t", steps=5, seconds=0.2)
        eventually(lambda: place.counted("t")["begin 1"] == 1, seconds=20)
        server.stop()
        eventually(lambda: "waiting: cannot connect to Postgres" in worker.log, seconds=20)
        again = EmbeddedPostgres(directory, settings={"fsync": "off"})
        assert url == again.acquire()

        assert "succeeded" == place.result("t").status
        place.submit("steps", "later")
        assert "succeeded" == place.result("later").status
        assert worker.alive
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()
        again.stop()
    again.release()
    server.release()


@pytest.mark.guarantee("G1")
def test_with_everything_of_the_queue_lost_in_mid_run_every_thread_still_ends(
    fleet: Fleet, place: Place, eventually: Eventually, query: Query
) -> None:
    names = [f"t-{number}" for number in range(12)]
    for name in names[:8]:
        place.submit("steps", name, steps=3, seconds=0.2)
    fleet.worker("steps", concurrency=3)
    fleet.worker("steps", concurrency=3)
    eventually(lambda: any(place.counted(name)["begin 1"] for name in names), seconds=20)
    query(MUTE)
    for number in range(4):
        query("truncate workers")
        query("select pg_terminate_backend(pid) from pg_stat_activity where query = 'listen standfast_due'")
        place.submit("steps", names[8 + number], steps=3, seconds=0.2)

    assert {"succeeded"} == {str(place.result(name).status) for name in names}
    for name in names:
        assert {1} == set(place.counted(name).values()), name


def test_without_notifications_work_is_handed_over_within_a_sweep(fleet: Fleet, place: Place, query: Query) -> None:
    query(MUTE)
    fleet.worker("steps")
    took = []
    for number in range(5):
        submitted = time.time()
        place.submit("steps", f"t-{number}")
        assert "succeeded" == place.result(f"t-{number}").status
        took.append(place.lines(f"t-{number}")[0].at - submitted)

    print(f"handed over after {sorted(round(one, 3) for one in took)} s")
    assert statistics.median(took) < SWEEP
