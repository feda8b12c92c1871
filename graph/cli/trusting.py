"""What can be typed about trust: the audit, and who is in which group."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from standfast.graph.cli.options import As, Json

audit: Final = typer.Typer(
    help="What happened to approvals, and whether that is still told as it was.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
groups: Final = typer.Typer(
    help="Who is in which group, beside what people's tokens claim.", no_args_is_help=True, rich_markup_mode=None
)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose name, as decisions have it.", show_default=False)]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant that the group is in.")]


@audit.command()
def verify(
    context: typer.Context,
    anchor: Annotated[
        str | None, typer.Option("--anchor", metavar="NUMBER:HASH", help="An anchor that you kept elsewhere.")
    ] = None,
    json: Json = False,
) -> int:
    """Recompute the whole audit, and say what is not as it was written (exit code 1)."""
    from standfast.graph.cli import trust

    return trust.verify(context.obj, anchor, as_json=json)


@audit.command()
def export(
    context: typer.Context,
    thread: Annotated[str | None, typer.Option("--thread", metavar="ID", help="Of one thread only.")] = None,
) -> int:
    """Print the audit, one JSON object a line."""
    from standfast.graph.cli import trust

    return trust.export(context.obj, thread)


@audit.command()
def anchor(context: typer.Context, json: Json = False) -> int:
    """Anchor what is new, as workers do every minute, and print the anchor, to be kept elsewhere."""
    from standfast.graph.cli import trust

    return trust.anchor(context.obj, as_json=json)


@groups.command()
def add(context: typer.Context, group: Group, name: Name, tenant: Tenant = "default", as_: As = None) -> int:
    """Put somebody into a group."""
    from standfast.graph.cli import trust

    return trust.set_member(context.obj, group, name, tenant=tenant, member=True, as_=as_)


@groups.command()
def remove(context: typer.Context, group: Group, name: Name, tenant: Tenant = "default", as_: As = None) -> int:
    """Take somebody out of a group."""
    from standfast.graph.cli import trust

    return trust.set_member(context.obj, group, name, tenant=tenant, member=False, as_=as_)


@groups.command("list")
def list_(
    context: typer.Context,
    group: Annotated[str | None, typer.Argument(metavar="[GROUP]", help="One group; else all.")] = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> int:
    """List who is in a group, or in all."""
    from standfast.graph.cli import trust

    return trust.members(context.obj, group, tenant=tenant, as_json=json)
