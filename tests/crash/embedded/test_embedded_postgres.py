"""One embedded server, many holders, and kill -9 at every turn: real processes, real servers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from standfast.checkpoint.embedded import EmbeddedPostgres

Hold = Callable[..., Any]


def servers(directory: Path) -> list[int]:
    """The pids of all that works in the data directory, zombies apart."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) == directory.resolve() / "data":
                found.append(process.pid)
    return found


def wait_until(true: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def kill_server(pid: int) -> None:
    process = psutil.Process(pid)
    process.kill()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def count(uri: str) -> int:
    with psycopg.connect(uri) as connection:
        row = connection.execute("select count(*) from claim").fetchone()
    assert row is not None
    return int(row[0])


def insert(uri: str) -> None:
    with psycopg.connect(uri) as connection:
        connection.execute("create table if not exists claim (n int)")
        connection.execute("insert into claim values (1)")


# -- who holds it, and who stops it


def test_a_killed_holder_is_forgotten_and_the_next_one_stops_the_server(
    release: str, directory: Path, hold: Hold
) -> None:
    first = hold(directory)
    _, pid = first.ready()
    first.kill()
    assert pid == EmbeddedPostgres(directory).status().pid
    second = hold(directory)
    assert pid == second.ready()[1]
    second.exit()
    assert [] == servers(directory)


def test_the_last_to_leave_stops_the_server_and_no_one_before(directory: Path, hold: Hold) -> None:
    holders = [hold(directory) for _ in range(3)]
    uris = {holder.ready() for holder in holders}
    assert 1 == len(uris)
    uri, pid = uris.pop()
    holders[0].do("release")
    assert holders[0].told("released")
    assert 1 == count(uri)
    holders[1].exit()  # without a release: atexit
    assert 1 == count(uri)
    assert pid == EmbeddedPostgres(directory).status().pid
    holders[2].exit()
    assert [] == servers(directory)


def test_four_processes_that_race_to_make_it_share_one_server(release: str, place: Path, hold: Hold) -> None:
    holders = [hold(place / "pg") for _ in range(4)]
    assert 1 == len({holder.ready() for holder in holders})
    for holder in holders[:-1]:
        holder.exit()
    assert [] != servers(place / "pg")
    holders[-1].exit()
    assert [] == servers(place / "pg")


def test_ctrl_c_in_a_terminal_ends_its_program_and_not_the_server(directory: Path, hold: Hold) -> None:
    first, second = hold(directory), hold(directory)
    uri, pid = first.ready()
    second.ready()
    os.killpg(first.process.pid, signal.SIGINT)
    first.process.wait(120)
    assert pid == EmbeddedPostgres(directory).status().pid
    assert 1 == count(uri)


def test_one_object_holds_once_however_often_it_acquires(directory: Path) -> None:
    server = EmbeddedPostgres(directory)
    assert server.acquire() == server.acquire()
    server.release()
    assert [] == servers(directory)
    server.release()


def test_two_objects_in_one_process_hold_each_for_itself(directory: Path) -> None:
    with EmbeddedPostgres(directory) as first:
        with EmbeddedPostgres(directory):
            pass
        assert 1 == count(first.uri())
    assert [] == servers(directory)


def test_a_forked_child_neither_stops_the_server_nor_keeps_it(directory: Path, hold: Hold) -> None:
    holder = hold(directory)
    uri, _ = holder.ready()
    holder.do("fork and exit")
    assert 0 == holder.told("status")
    assert 1 == count(uri)
    holder.do("fork")
    child = psutil.Process(holder.told("child"))
    try:
        assert 1 == count(uri)
        holder.do("release")
        assert holder.told("released")
        assert [] == servers(directory)
        with EmbeddedPostgres(directory, start_timeout=5) as server:
            assert 1 == count(server.uri())
    finally:
        child.kill()


def test_stop_stops_a_server_that_is_in_use_and_says_whether_it_ran(directory: Path, hold: Hold) -> None:
    holder = hold(directory)
    _, pid = holder.ready()
    command = EmbeddedPostgres(directory)
    assert (True, True, pid) == (command.status().running, command.status().in_use, command.status().pid)
    assert command.stop()
    assert [] == servers(directory)
    assert (False, True, None) == (command.status().running, command.status().in_use, command.status().pid)
    assert not command.stop()


def test_status_and_stop_of_nothing_make_nothing(place: Path) -> None:
    server = EmbeddedPostgres(place / "pg")
    status = server.status()
    assert (False, False, None, None) == (status.running, status.in_use, status.pid, status.version)
    assert not server.stop()
    assert not (place / "pg").exists()


# -- what a kill leaves


def test_a_killed_server_is_started_again_with_its_data(release: str, directory: Path, hold: Hold) -> None:
    first = hold(directory)
    uri, pid = first.ready()
    insert(uri)
    kill_server(pid)
    second = hold(directory)
    uri, again = second.ready()
    assert pid != again
    assert 2 == count(uri)


def test_holder_and_server_killed_together_leave_a_directory_that_starts_at_once(
    release: str, directory: Path, hold: Hold
) -> None:
    first = hold(directory)
    uri, pid = first.ready()
    insert(uri)
    first.process.kill()
    kill_server(pid)
    second = hold(directory)
    assert 2 == count(second.ready()[0])
    second.exit()
    assert [] == servers(directory)


def test_a_start_waits_for_the_sessions_that_outlive_a_killed_server(directory: Path, hold: Hold) -> None:
    first = hold(directory)
    uri, pid = first.ready()
    with psycopg.connect(uri) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        backend.suspend()  # in a long computation it would not notice either
        kill_server(pid)
        second = hold(directory)
        assert "an earlier server" in second.told("waits")
        assert [backend.pid] == servers(directory)
        backend.resume()
        assert 1 == count(second.ready()[0])


def test_a_zombie_is_not_taken_for_a_server(directory: Path, hold: Hold) -> None:
    first = hold(directory, SUBREAPER="1")
    _, pid = first.ready()
    kill_server(pid)
    assert psutil.STATUS_ZOMBIE == psutil.Process(pid).status()
    assert not EmbeddedPostgres(directory).status().running
    assert 1 == count(hold(directory).ready()[0])


def leave_stale(directory: Path, hold: Hold, lock_file: Callable[[str], str]) -> None:
    """Kill server and holder, and leave this postmaster.pid."""
    holder = hold(directory)
    _, pid = holder.ready()
    holder.process.kill()
    kill_server(pid)
    path = directory / "data" / "postmaster.pid"
    path.write_text(lock_file(path.read_text()))


def with_pid(pid: int) -> Callable[[str], str]:
    return lambda text: "\n".join([str(pid), *text.split("\n")[1:]])


def test_a_pid_that_another_program_has_by_now_is_not_taken_for_the_server(
    release: str, directory: Path, hold: Hold
) -> None:
    with subprocess.Popen(["sleep", "300"], cwd=directory / "data") as sleep:
        try:
            leave_stale(directory, hold, with_pid(sleep.pid))
            assert not EmbeddedPostgres(directory).status().running
            assert 1 == count(hold(directory).ready()[0])
            assert sleep.pid != EmbeddedPostgres(directory).status().pid
        finally:
            sleep.kill()


def test_a_pid_that_another_postgres_has_by_now_is_not_taken_for_the_server(
    place: Path, directory: Path, seed: Path, hold: Hold
) -> None:
    subprocess.run(["cp", "-a", seed, place / "other"], check=True)
    with EmbeddedPostgres(place / "other") as other:
        pid = other.status().pid
        assert pid is not None
        leave_stale(directory, hold, with_pid(pid))
        assert pid != hold(directory).ready()[1]
        assert EmbeddedPostgres(directory).stop()
        assert pid == other.status().pid


@pytest.mark.parametrize("text", ["", "99999\n", "-\n", "9" * 40])
def test_a_broken_postmaster_pid_is_cleared_away(directory: Path, hold: Hold, text: str) -> None:
    (directory / "data" / "postmaster.pid").write_text(text)
    assert 1 == count(hold(directory).ready()[0])


def initdb_of(holder: Any, directory: Path) -> psutil.Process:
    """The initdb that the holder runs, stopped half-way."""
    wait_until(lambda: (directory / "data.new" / "PG_VERSION").exists())
    children = psutil.Process(holder.process.pid).children()
    initdb = next(child for child in children if child.name() == "initdb")
    initdb.suspend()
    assert not (directory / "data").exists()
    return initdb


def test_an_initdb_that_was_killed_half_way_is_done_anew(release: str, place: Path, hold: Hold) -> None:
    first = hold(place / "pg")
    initdb = initdb_of(first, place / "pg")
    first.kill()
    initdb.kill()
    second = hold(place / "pg")
    insert(second.ready()[0])
    assert not (place / "pg" / "data.new").exists()


def test_an_initdb_that_outlives_its_holder_is_waited_for(place: Path, hold: Hold) -> None:
    first = hold(place / "pg")
    initdb = initdb_of(first, place / "pg")
    first.kill()
    second = hold(place / "pg")
    assert "initdb" in second.told("waits")
    assert not (place / "pg" / "data").exists()
    initdb.resume()
    insert(second.ready()[0])


@pytest.mark.guarantee("G1")
def test_no_acknowledged_commit_is_lost_to_a_killed_server(release: str, directory: Path, hold: Hold) -> None:
    acknowledged: list[int] = []

    def write(uri: str, first: int) -> None:
        with contextlib.suppress(psycopg.Error), psycopg.connect(uri, autocommit=True) as connection:
            for n in range(first, first + 1_000_000):
                connection.execute("insert into claim values (%s)", [n])
                acknowledged.append(n)

    for crash in range(3):
        uri, pid = hold(directory).ready()
        before = len(acknowledged)
        firsts = [(crash * 4 + writer + 1) * 1_000_000 for writer in range(4)]
        writers = [threading.Thread(target=write, args=(uri, first)) for first in firsts]
        for writer in writers:
            writer.start()
        wait_until(lambda before=before: len(acknowledged) > before + 200)  # type: ignore[misc]
        kill_server(pid)
        for writer in writers:
            writer.join(20)
    with EmbeddedPostgres(directory) as server, psycopg.connect(server.uri()) as connection:
        kept = {row[0] for row in connection.execute("select n from claim")}
    assert set() == set(acknowledged) - kept
