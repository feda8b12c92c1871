"""What operators can type: lists over all threads, the worker, and what moves a run that does not move by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from standfast.graph.cli.options import (
    As,
    Budget,
    Channels,
    Deadline,
    Digest,
    Graph,
    Json,
    Limit,
    NoWait,
    OfGraph,
    OfThread,
    State,
    Thread,
)

_VERBS: Final[dict[str, Literal["happened", "did_not_happen", "abandon"]]] = {
    "happened": "happened",
    "did-not-happen": "did_not_happen",
    "abandon": "abandon",
}
OutcomeId = Annotated[str, typer.Argument(metavar="ID", help="The question's id, out-...", show_default=False)]
operators: Final = typer.Typer(rich_markup_mode=None)
outbox: Final = typer.Typer(help="Messages, and how they stand with their channels.", rich_markup_mode=None)
artifacts: Final = typer.Typer(help="What threads keep outside their checkpoints.", rich_markup_mode=None)
operators.add_typer(outbox, name="outbox")
operators.add_typer(artifacts, name="artifacts")


@operators.command()
def worker(
    context: typer.Context,
    graphs: Annotated[
        list[str] | None,
        typer.Option(
            "--graph",
            metavar="[NAME[@VERSION[,OLDER...]]=]MODULE:ATTR",
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
    channels: Channels = None,
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
        channels=channels,
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
        Literal["approval", "question", "timer", "event", "completion", "child"] | None,
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
def settle(
    context: typer.Context,
    identifier: OutcomeId,
    what: Annotated[
        Literal["happened", "did-not-happen", "abandon"],
        typer.Argument(help="It happened; it did not, and is tried again; nobody knows, and it shall rest."),
    ],
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="With happened: what it returned.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the decision.")] = None,
    digest: Digest = None,
    graph: Graph = None,
    as_: As = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> int:
    """Say what became of a call whose outcome is unknown, and carry its thread on."""
    from standfast.graph.cli import settle as command

    return command.settle(
        context.obj,
        identifier,
        _VERBS[what],
        result,
        reason,
        graph=graph,
        as_=as_,
        digest=digest,
        wait=not no_wait,
        as_json=json,
    )


@operators.command()
def complete(
    context: typer.Context,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="The operation's id, op-...")],
    result: Annotated[str | None, typer.Option("--result", metavar="JSON", help="What it came to.")] = None,
    error: Annotated[str | None, typer.Option("--error", help="Why it failed.")] = None,
    as_: As = None,
    json: Json = False,
) -> int:
    """Tell the end of an operation whose work went on elsewhere; a worker, or resume, carries its thread on."""
    from standfast.graph.cli import settle as command

    return command.complete(context.obj, operation, result, error, as_=as_, as_json=json)


@operators.command()
def emit(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What has happened, such as paid.", show_default=False)],
    payload: Annotated[str | None, typer.Argument(metavar="[JSON]", help="What whoever waits for it gets.")] = None,
    match: Annotated[
        str | None, typer.Option("--match", metavar="JSON", help="Which one, as in wait_for_event(match=...).")
    ] = None,
    identifier: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The same id twice is one event; else a new one.")
    ] = None,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="How long it is kept for waits that come later.")
    ] = "7d",
    as_: As = None,
    json: Json = False,
) -> int:
    """Tell of an event; a worker, or resume, carries the threads on that waited for it."""
    from standfast.graph.cli import settle as command

    return command.emit(context.obj, name, payload, match=match, identifier=identifier, ttl=ttl, as_=as_, as_json=json)


@operators.command()
def retry(
    context: typer.Context, thread: Thread, deadline: Deadline = None, budget: Budget = None, json: Json = False
) -> int:
    """Make a run that needs attention, or has ended at its limit, due again; a worker, or resume, goes on with it."""
    from standfast.graph.cli import operate

    return operate.retry(context.obj, thread, deadline=deadline, budget=budget, as_json=json)


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


@operators.command()
def prune(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Not changed for so long: 90d, 12h.", show_default=False)
    ],
    states: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only those that succeeded, failed or were cancelled; may be repeated."),
    ] = None,
    graph: OfGraph = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose threads.")] = "default",
    keep_checkpoints: Annotated[
        int | None,
        typer.Option(
            "--keep-checkpoints",
            metavar="N",
            min=1,
            help="Delete no thread: keep only so many of the newest checkpoints of each, whatever its state.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
) -> int:
    """Delete threads that have ended, or cut long histories. What is open stays, and so does the audit."""
    from standfast.graph.cli import prune as command

    return command.prune(
        context.obj,
        older_than,
        states=states or None,
        graph=graph,
        tenant=tenant,
        keep_checkpoints=keep_checkpoints,
        dry_run=dry_run,
        as_json=json,
    )


MessageId = Annotated[str, typer.Argument(metavar="ID", help="The message's id, msg-...", show_default=False)]
OfChannel = Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Only those of one channel.")]


@outbox.command("list")
def outbox_list(
    context: typer.Context,
    state: Annotated[
        Literal["pending", "delivered", "dead"] | None, typer.Option("--state", help="Only those in this state.")
    ] = None,
    thread: OfThread = None,
    channel: OfChannel = None,
    limit: Limit = 50,
    json: Json = False,
) -> int:
    """List messages and their deliveries, the newest first; --state dead is what was given up."""
    from standfast.graph.cli import messages

    return messages.list_all(context.obj, state=state, thread=thread, channel=channel, limit=limit, as_json=json)


@outbox.command("show")
def outbox_show(context: typer.Context, message: MessageId, json: Json = False) -> int:
    """Show one message with its payload."""
    from standfast.graph.cli import messages

    return messages.show(context.obj, message, as_json=json)


@outbox.command("retry")
def outbox_retry(
    context: typer.Context,
    message: Annotated[str | None, typer.Argument(metavar="[ID]", help="The message's id, msg-...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Whatever is dead.")] = False,
    channel: OfChannel = None,
    json: Json = False,
) -> int:
    """Send dead messages again, with a full number of attempts."""
    from standfast.graph.cli import messages

    return messages.retry(context.obj, message, everything=everything, channel=channel, as_json=json)


@outbox.command("dispatch")
def outbox_dispatch(context: typer.Context, channels: Channels = None, json: Json = False) -> int:
    """Deliver what is due now, and end; a worker does it all the time."""
    from standfast.graph.cli import messages

    return messages.dispatch(context.obj, channels, as_json=json)


@outbox.command("forget")
def outbox_forget(
    context: typer.Context,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.", show_default=False)],
    json: Json = False,
) -> int:
    """Drop a channel that nobody serves any more, with what it has not delivered."""
    from standfast.graph.cli import messages

    return messages.forget(context.obj, channel, as_json=json)


@artifacts.command("list")
def artifacts_list(context: typer.Context, thread: OfThread = None, limit: Limit = 50, json: Json = False) -> int:
    """List artifacts, the newest first."""
    from standfast.graph.cli import artifacts as command

    return command.list_all(context.obj, thread=thread, limit=limit, as_json=json)


@artifacts.command("get")
def artifacts_get(
    context: typer.Context,
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="The artifact's id, or how it begins.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to; else standard output.")] = None,
) -> int:
    """Write an artifact's bytes to a file, or to standard output."""
    from standfast.graph.cli import artifacts as command

    return command.get(context.obj, identifier, out)
