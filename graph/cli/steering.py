"""What can be typed about the fleet: its limits and its schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from standfast.graph.cli.options import As, Budget, Deadline, Graph, Json, Priority

limits: Final = typer.Typer(
    help="How much the whole fleet does at a time: of a tenant, a graph, an operation, a model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="tenant:NAME, graph:NAME, operation:NAME, model:NAME or model:PROVIDER.", show_default=False
    ),
]


@limits.command("list")
def list_limits(context: typer.Context, json: Json = False) -> int:
    """List the limits that are set, and how much of each is used."""
    from standfast.graph.cli import flow

    return flow.list_all(context.obj, as_json=json)


@limits.command("set")
def set_limit(
    context: typer.Context,
    key: Key,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="So many at a time.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="CALLS/TIME", help="So many calls in a time, such as 500/1m.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option("--burst", help="Of those, so many may come at once; else a tenth.")
    ] = None,
    queued: Annotated[
        int | None, typer.Option("--queued", help="So many due runs may wait for a worker; more are refused.")
    ] = None,
    as_: As = None,
) -> int:
    """Set a limit for every worker, in place of the one before."""
    from standfast.graph.cli import flow

    return flow.set_limit(context.obj, key, concurrency=concurrency, rate=rate, burst=burst, queued=queued, as_=as_)


@limits.command()
def clear(context: typer.Context, key: Key) -> int:
    """Take a limit away."""
    from standfast.graph.cli import flow

    return flow.clear(context.obj, key)


schedules: Final = typer.Typer(
    help="Runs at times of their own, fired by workers.", no_args_is_help=True, rich_markup_mode=None
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]


@schedules.command()
def add(
    context: typer.Context,
    name: Name,
    cron: Annotated[str, typer.Argument(metavar="CRON", help="minute hour day month weekday, such as '0 6 * * 1-5'.")],
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="What is wanted each time.")],
    timezone: Annotated[str, typer.Option("--timezone", metavar="ZONE", help="Such as Europe/Berlin.")] = "UTC",
    catch_up: Annotated[
        Literal["skip", "last", "all"],
        typer.Option("--catch-up", help="Of the times while no worker ran: none, the last, or all."),
    ] = "last",
    overlap: Annotated[
        Literal["skip", "queue"],
        typer.Option("--overlap", help="While an earlier run is unfinished: skip the time, or queue behind it."),
    ] = "skip",
    docs: Annotated[
        list[Path] | None, typer.Option("--docs", metavar="PATH", help="A file or folder to search; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="openai:NAME, or offline.")] = None,
    deadline: Deadline = None,
    budget: Budget = None,
    priority: Priority = 0,
    graph: Graph = None,
    as_: As = None,
    json: Json = False,
) -> int:
    """Submit a request at every time of a cron expression, each as a thread of its own."""
    from standfast.graph.cli import schedules as commands

    return commands.add(
        context.obj,
        name,
        cron,
        request,
        timezone=timezone,
        catch_up=catch_up,
        overlap=overlap,
        documents=docs or (),
        model=model,
        deadline=deadline,
        budget=budget,
        priority=priority,
        graph=graph,
        as_=as_,
        as_json=json,
    )


@schedules.command("list")
def list_schedules(context: typer.Context, json: Json = False) -> int:
    """List the schedules, their next times, and what became of the last ones."""
    from standfast.graph.cli import schedules as commands

    return commands.list_all(context.obj, as_json=json)


@schedules.command()
def pause(context: typer.Context, name: Name, as_: As = None) -> int:
    """Fire nothing until it is resumed."""
    from standfast.graph.cli import schedules as commands

    return commands.pause(context.obj, name, as_)


@schedules.command()
def resume(context: typer.Context, name: Name, as_: As = None) -> int:
    """Go on with the next time from now."""
    from standfast.graph.cli import schedules as commands

    return commands.resume(context.obj, name, as_)


@schedules.command()
def remove(context: typer.Context, name: Name, as_: As = None) -> int:
    """Forget a schedule; its runs stay."""
    from standfast.graph.cli import schedules as commands

    return commands.remove(context.obj, name, as_)


@schedules.command()
def run(context: typer.Context, name: Name, as_: As = None, json: Json = False) -> int:
    """Submit its request now, beside its times."""
    from standfast.graph.cli import schedules as commands

    return commands.run(context.obj, name, as_, as_json=json)
