"""`db start|stop|status`: the embedded server. Nothing here loads an agent."""

from __future__ import annotations

from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.graph.cli.exits import FAILED, SUCCEEDED
from standfast.graph.cli.output import note, say, say_json


def start(*, as_json: bool) -> int:
    """Start the embedded server, and let it run until `db stop`."""
    server = EmbeddedPostgres(log=note)
    server.acquire()
    try:
        server.keep()
    finally:
        server.release()
    found = server.status()
    if as_json:
        say_json(_json(server))
    else:
        say(f"Postgres {found.version} runs in {found.directory} (pid {found.pid}), until: standfast db stop")
    return SUCCEEDED


def stop(*, as_json: bool) -> int:
    """Stop the embedded server, whoever uses it; what was committed is kept."""
    server = EmbeddedPostgres(log=note)
    stopped = server.stop()
    if as_json:
        say_json({**_json(server), "stopped": stopped})
    else:
        say(f"Stopped the server in {server.directory}." if stopped else f"No server ran in {server.directory}.")
    return SUCCEEDED


def status(*, as_json: bool) -> int:
    """Say whether the embedded server runs; the exit code is 1 if it does not."""
    server = EmbeddedPostgres(log=note)
    found = server.status()
    if as_json:
        say_json(_json(server))
    elif found.version is None:
        say(f"There is no embedded server in {found.directory} yet; the first run makes it.")
    elif found.running:
        in_use = "in use" if found.in_use else "not in use"
        say(f"Postgres {found.version} runs in {found.directory} (pid {found.pid}), {in_use}.")
    else:
        say(f"Postgres {found.version} in {found.directory} does not run; it starts when it is needed.")
    return SUCCEEDED if found.running else FAILED


def _json(server: EmbeddedPostgres) -> dict[str, object]:
    found = server.status()
    return {
        "directory": str(found.directory),
        "running": found.running,
        "in_use": found.in_use,
        "pid": found.pid,
        "version": found.version,
    }
