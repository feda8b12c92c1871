"""What operators can type: lists over all threads, the worker, and what moves a run that does not move by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from standfast.graph.cli.options import Json, Limit, OfGraph, OfThread, State, Thread

operators: Final = typer.Typer(rich_markup_mode=None)


@operators.command()
def worker(
    context: typer.Context,
    graphs: Annotated[
        list[str] | None,
        typer.Option(
            "--graph",
            metavar="[NAME[@VERSION]=]MODULE:ATTR",
            help="A graph to serve, as it was submitted; may be repeated; else the built-in agent.",
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Threads driven at a time.")] = 10,
    grace: Annotated[float, typer.Option("--grace", min=0, help="Seconds for the steps under way at a stop.")] = 30.0,
    name: Annotated[str | None, typer.Option("--name", help="For people; else host and process.")] = None,
    health_file: Annotated[
        Path | None, typer.Option("--health-file", help="Touched as long as the database is reached.")
    ] = None,
    health_port: Annotated[
        int | None, typer.Option("--health-port", min=1, max=65535, help="Answers HTTP 200 as long as it is, else 503.")
    ] = None,
    log: Annotated[Literal["text", "json"], typer.Option("--log", help="How lines on stderr are written.")] = "text",
) -> int:
    """Carry on whatever is due, until SIGTERM or Ctrl-C; the steps under way are finished then."""
    from standfast.graph.cli import worker as command

    return command.worker(
        context.obj,
        graphs or (),
        concurrency=concurrency,
        grace=grace,
        name=name,
        health_file=health_file,
        health_port=health_port,
        log=log,
    )


@operators.command()
def threads(
    context: typer.Context, state: State = None, graph: OfGraph = None, limit: Limit = 50, json: Json = False
) -> int:
    """List the threads that changed last."""
    from standfast.graph.cli import operate

    return operate.threads(context.obj, state=state, graph=graph, limit=limit, as_json=json)


@operators.command()
def runs(
    context: typer.Context,
    state: State = None,
    graph: OfGraph = None,
    thread: OfThread = None,
    limit: Limit = 50,
    json: Json = False,
) -> int:
    """List the runs that were accepted last."""
    from standfast.graph.cli import operate

    return operate.runs(context.obj, state=state, graph=graph, thread=thread, limit=limit, as_json=json)


@operators.command()
def waits(
    context: typer.Context,
    kind: Annotated[
        Literal["approval", "question", "timer", "event"] | None,
        typer.Option("--kind", help="Only waits of this kind."),
    ] = None,
    graph: OfGraph = None,
    thread: OfThread = None,
    limit: Limit = 50,
    json: Json = False,
) -> int:
    """List what threads wait for, the longest wait first."""
    from standfast.graph.cli import operate

    return operate.waits(context.obj, kind=kind, graph=graph, thread=thread, limit=limit, as_json=json)


@operators.command()
def workers(context: typer.Context, json: Json = False) -> int:
    """List the workers, and due runs that none of them serves."""
    from standfast.graph.cli import operate

    return operate.workers(context.obj, as_json=json)


@operators.command()
def retry(context: typer.Context, thread: Thread, json: Json = False) -> int:
    """Make a run that needs attention due again; a worker, or resume, goes on with it."""
    from standfast.graph.cli import operate

    return operate.retry(context.obj, thread, as_json=json)


@operators.command()
def release(
    context: typer.Context,
    thread: Thread,
    yes: Annotated[bool, typer.Option("--yes", help="The process that holds it is dead: I know.")] = False,
    json: Json = False,
) -> int:
    """Take the lease of a dead process away at once, instead of waiting until it runs out."""
    from standfast.graph.cli import operate

    return operate.release(context.obj, thread, yes=yes, as_json=json)


@operators.command()
def park(
    context: typer.Context,
    thread: Thread,
    reason: Annotated[str, typer.Option("--reason", help="Kept with the run.", show_default=False)],
    json: Json = False,
) -> int:
    """Put a run aside: it needs attention until it is retried or cancelled."""
    from standfast.graph.cli import operate

    return operate.park(context.obj, thread, reason, as_json=json)
