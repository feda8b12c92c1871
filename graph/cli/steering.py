"""What can be typed about the fleet's limits."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from standfast.graph.cli.options import As, Json

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
