"""`doctor` and `migrate`: what is configured, reachable and out of date, and bringing the schema up to date."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from standfast.checkpoint import errors
from standfast.checkpoint.binaries import find_binaries
from standfast.checkpoint.database import conninfo_of, describe
from standfast.checkpoint.health import database_health
from standfast.checkpoint.migrate import OF_OTHERS, migrations
from standfast.checkpoint.migrate import migrate as apply_migrations
from standfast.checkpoint.settings import Settings
from standfast.graph.bar import Bar
from standfast.graph.cli.exits import FAILED, SUCCEEDED, sentence_of
from standfast.graph.cli.output import note, say, say_json, say_table
from standfast.graph.cli.run import require_writable
from standfast.graph.cli.session import chosen_url, embedded_server, read_settings, session
from standfast.nodes.models import OFFLINE, default_model, load_model

_LEAST_FREE: Final = 200 * 2**20  # bytes; an empty server takes 40 MB and its first logs 32 MB
_OTHER_VARIABLES: Final = frozenset({"STANDFAST_PG_BIN", "STANDFAST_TEST_DATABASE_URL"})  # read without Settings
_PACKAGES: Final = (
    "standfast",
    "langgraph",
    "langgraph-checkpoint-postgres",
    "langchain-core",
    "langchain-openai",
    "psycopg",
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "note", "broken"]
    detail: str


def doctor(database: str | None, *, as_json: bool) -> int:
    """Look at everything; the exit code is 1 if something is broken."""
    checks = list(_checks(database))
    broken = [one for one in checks if one.state == "broken"]
    if as_json:
        say_json({"ok": not broken, "checks": [vars(one) for one in checks]})
    else:
        say_table(("", "CHECK", "FOUND"), [(one.state, one.name, one.detail) for one in checks])
        note("\nSomething is broken." if broken else "\nNothing is broken.")
    return FAILED if broken else SUCCEEDED


def migrate(database: str | None, *, as_json: bool) -> int:
    """Bring the database's schema up to date."""
    total = len(migrations()) + OF_OTHERS
    with session(database) as current, Bar("Migrating", unit="migration", total=total) as bar:

        def report(name: str) -> None:
            note(f"Applying {name}")
            bar.add()

        applied = asyncio.run(apply_migrations(current.url, report=report))
    if as_json:
        say_json(applied)
    else:
        say(f"Applied: {', '.join(applied)}" if applied else "The schema is up to date.")
    return SUCCEEDED


def _checks(database: str | None) -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield Check("packages", "ok", ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES))
    try:
        settings = read_settings()
    except errors.ConfigurationError as error:
        yield Check("settings", "broken", sentence_of(error))
        return
    yield from _misspelt(os.environ)
    url = chosen_url(database, settings)
    if url is not None:
        yield from _server(url, "STANDFAST_DATABASE_URL" if database is None else "--database")
    else:
        yield from _embedded(settings)
    yield _looked_at("model", lambda: _model(settings))
    yield _reports(settings)


def _misspelt(environment: Mapping[str, str]) -> Iterator[Check]:
    """Variables that look like ours, and that nobody reads."""
    known = {f"STANDFAST_{name.upper()}" for name in Settings.model_fields} | _OTHER_VARIABLES
    for name in sorted(environment):
        if name.startswith("STANDFAST") and name not in known:
            close = get_close_matches(name, known, 1)
            yield Check("settings", "note", f"{name} is no setting" + (f"; {close[0]} is" if close else ""))


def _server(url: str, source: str) -> Iterator[Check]:
    yield _looked_at("database", lambda: f"{describe(conninfo_of(url))}, from {source}")
    yield from _schema(url)


def _schema(url: str) -> Iterator[Check]:
    try:
        health = asyncio.run(database_health(url))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is broken
        yield Check("server", "broken", sentence_of(error))
        return
    major, minor = divmod(health.server_version, 10_000)
    yield Check("server", "ok", f"Postgres {major}.{minor}")
    if health.current:
        yield Check("schema", "ok", f"migration {health.migration}, up to date")
    elif health.migration is None:
        yield Check("schema", "note", "not there yet; the first run or `standfast migrate` makes it")
    else:
        detail = f"migration {health.migration} of {health.newest}, or a library's tables, are out of date"
        yield Check("schema", "note", f"{detail}; the next run or `standfast migrate` brings them up to date")


def _embedded(settings: Settings) -> Iterator[Check]:
    try:
        server = embedded_server(settings)
        found = server.status()
        binaries = find_binaries(found.version)
    except errors.EmbeddedPostgresError as error:
        yield Check("database", "broken", sentence_of(error))
        return
    yield Check(
        "database", "ok", f"embedded in {found.directory} ({'running' if found.running else 'started for this check'})"
    )
    yield Check("binaries", "ok", str(binaries))
    yield _disk(found.directory)
    if found.version is None:
        yield Check("server", "note", "not made yet; the first run makes it")
        return
    try:
        url = server.acquire()
    except errors.EmbeddedPostgresError as error:
        yield Check("server", "broken", sentence_of(error))
        return
    try:
        yield from _schema(url)
    finally:
        server.release()


def _disk(directory: Path) -> Check:
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**30:,.1f} GB free in {existing}"
    return Check("disk", "ok" if free >= _LEAST_FREE else "broken", text)


def _model(settings: Settings) -> str:
    name = settings.model or default_model()
    load_model(name)
    key = "set" if os.environ.get("OPENAI_API_KEY") else "not set"
    server = os.environ.get("OPENAI_BASE_URL")
    what = "offline, which is not a language model" if name == OFFLINE else name
    return f"{what}; OPENAI_API_KEY is {key}" + (f"; server {server}" if server else "")


def _reports(settings: Settings) -> Check:
    if settings.reports_url:
        return Check("reports", "ok", f"posted to {settings.reports_url}")
    directory = settings.reports_dir or Path("reports")
    try:
        require_writable(directory)
    except errors.InvalidRequest as error:
        # Nobody has asked for this folder: it is only where this command was typed.
        return Check("reports", "note" if settings.reports_dir is None else "broken", sentence_of(error))
    return Check("reports", "ok", f"written to {directory.expanduser().absolute()}")


def _looked_at(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except errors.StandfastError as error:
        return Check(name, "broken", sentence_of(error))
