"""What can be typed about a thread's past."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from standfast.graph.cli.options import As, Budget, Deadline, Graph, Json, Limit, NoWait, Thread

travel: Final = typer.Typer(rich_markup_mode=None)

Place = Annotated[
    str,
    typer.Argument(metavar="THREAD[@CHECKPOINT]", help="A state; the newest, or one it had.", show_default=False),
]
At = Annotated[str | None, typer.Option("--at", metavar="CHECKPOINT", help="Another way to write THREAD@CHECKPOINT.")]


@travel.command()
def history(
    context: typer.Context,
    thread: Thread,
    limit: Limit = 50,
    before: Annotated[
        str | None, typer.Option("--before", metavar="CHECKPOINT", help="Only older ones than this.")
    ] = None,
    json: Json = False,
) -> int:
    """List a thread's checkpoints, newest first."""
    from standfast.graph.cli import past

    return past.history(context.obj, thread, limit=limit, before=before, as_json=json)


@travel.command()
def state(context: typer.Context, place: Place, at: At = None, graph: Graph = None, json: Json = False) -> int:
    """Show a thread's values, now or at a checkpoint."""
    from standfast.graph.cli import past

    return past.state(context.obj, place, at=at, graph=graph, as_json=json)


@travel.command()
def diff(context: typer.Context, before: Place, after: Place, graph: Graph = None, json: Json = False) -> int:
    """Show what differs between two states, of one thread or of two."""
    from standfast.graph.cli import past

    return past.diff(context.obj, before, after, graph=graph, as_json=json)


@travel.command()
def fork(
    context: typer.Context,
    place: Place,
    at: At = None,
    to: Annotated[str | None, typer.Option("--to", metavar="ID", help="The new thread's id.")] = None,
    values: Annotated[
        str | None, typer.Option("--values", metavar="JSON", help="Fields to write into its state first.")
    ] = None,
    as_node: Annotated[
        str | None, typer.Option("--as-node", metavar="NODE", help="As if this node had returned them.")
    ] = None,
    allow_effects: Annotated[
        bool, typer.Option("--allow-effects", help="New effects may happen, each with a new approval.")
    ] = False,
    deadline: Deadline = None,
    budget: Budget = None,
    graph: Graph = None,
    as_: As = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> int:
    """Go on from a state on a new thread; what was done there is not done again."""
    from standfast.graph.cli import past

    return past.fork(
        context.obj,
        place,
        at=at,
        to=to,
        values=values,
        as_node=as_node,
        allow_effects=allow_effects,
        deadline=deadline,
        budget=budget,
        graph=graph,
        as_=as_,
        wait=not no_wait,
        as_json=json,
    )
