"""What can be typed: the commands, their options and their help. What a command does is loaded when it is called.

Invariant: nothing here imports LangGraph or talks to a database, so that help and `db status` are quick.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from standfast.graph.cli.exits import INTERRUPTED, REFUSED, code_of_error, sentence_of
from standfast.graph.cli.operators import operators
from standfast.graph.cli.options import (
    ApprovalId,
    ApprovalIds,
    As,
    Budget,
    Deadline,
    Digest,
    Graph,
    Json,
    NoWait,
    Priority,
    Thread,
    token_file,
)
from standfast.graph.cli.output import note, prepare_streams
from standfast.graph.cli.panels import Panels
from standfast.graph.cli.steering import limits, schedules
from standfast.graph.cli.travel import travel
from standfast.graph.cli.trusting import audit, groups

Verb = Literal["approve", "reject", "respond", "withdraw"]

app: Final = typer.Typer(
    name="standfast",
    cls=Panels,
    help="Agents that carry on after any crash, and ask a person before they act.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
db: Final = typer.Typer(
    help="The embedded Postgres, used when no database is named.", invoke_without_command=True, rich_markup_mode=None
)
app.add_typer(operators)
app.add_typer(travel)
app.add_typer(db, name="db")
app.add_typer(audit, name="audit")
app.add_typer(groups, name="groups")
app.add_typer(limits, name="limits")
app.add_typer(schedules, name="schedules")

_GLOBAL_FLAGS: Final = ("--debug",)
_GLOBAL_VALUES: Final = ("--database", "--token-file")


def run_app(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    prepare_streams()
    debug = "--debug" in arguments
    try:
        code = app(_globals_first(arguments), prog_name="standfast", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one place where every failure becomes a sentence
        if hasattr(error, "format_message"):  # usage, as typer found it
            note(f"standfast: {error.format_message().rstrip('.')}; see: {_command_of(error)} --help")
            return REFUSED
        if debug:
            traceback.print_exception(error)
        note(f"standfast: {sentence_of(error)}")
        return code_of_error(error)


def _globals_first(arguments: Sequence[str]) -> list[str]:
    """The global options may stand behind the command too."""
    first: list[str] = []
    rest: list[str] = []
    left = iter(arguments)
    for one in left:
        if one == "--":
            rest += [one, *left]
        elif one in _GLOBAL_FLAGS or one.startswith(tuple(f"{name}=" for name in _GLOBAL_VALUES)):
            first.append(one)
        elif one in _GLOBAL_VALUES:
            first += [one, *[value for value in [next(left, None)] if value is not None]]
        else:
            rest.append(one)
    return first + rest


def _command_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "standfast" if context is None else str(context.command_path)


def _help_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"standfast {metadata.version('standfast')}")
        raise typer.Exit


@app.callback()
def standfast(
    context: typer.Context,
    database: Annotated[
        str | None,
        typer.Option(
            "--database", metavar="URL", help="Postgres to use; else STANDFAST_DATABASE_URL, else the embedded one."
        ),
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="PATH", help="Proves who acts; else STANDFAST_TOKEN holds the token."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = database
    token_file.set(token)
    _help_alone(context)


@app.command()
def run(
    context: typer.Context,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="What is wanted; - reads it from standard input.")],
    docs: Annotated[
        list[Path] | None, typer.Option("--docs", metavar="PATH", help="A file or folder to search; may be repeated.")
    ] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="ID", help="The thread's id; else a new one.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="openai:NAME, or offline.")] = None,
    reports: Annotated[
        Path | None, typer.Option("--reports", metavar="DIR", help="Where reports are written; else ./reports.")
    ] = None,
    graph: Graph = None,
    as_: As = None,
    submit: Annotated[
        bool, typer.Option("--submit", "--no-wait", help="Only accept it; a worker, or standfast resume, drives it.")
    ] = False,
    client_key: Annotated[
        str | None, typer.Option("--client-key", metavar="KEY", help="The same key twice is one run.")
    ] = None,
    on_busy: Annotated[
        Literal["refuse", "queue", "withdraw", "interrupt"],
        typer.Option(
            "--on-busy",
            help="If the thread is busy: refuse, queue behind its run, withdraw what that asks, or cancel it.",
        ),
    ] = "refuse",
    deadline: Deadline = None,
    budget: Budget = None,
    priority: Priority = 0,
    json: Json = False,
) -> int:
    """Carry out a request, to its end or to a person's decision."""
    from standfast.graph.cli import run as command

    return command.run(
        context.obj,
        request,
        documents=docs or (),
        thread=thread,
        model=model,
        reports=reports,
        graph=graph,
        as_=as_,
        submit=submit,
        client_key=client_key,
        on_busy=on_busy,
        deadline=deadline,
        budget=budget,
        priority=priority,
        as_json=json,
    )


@app.command()
def approvals(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Those that were decided too.")] = False,
    thread: Annotated[str | None, typer.Option("--thread", metavar="ID", help="Of one thread only.")] = None,
    graph: Graph = None,
    json: Json = False,
) -> int:
    """List what waits for a person's decision."""
    from standfast.graph.cli import look

    return look.approvals(context.obj, graph=graph, thread=thread, everything=everything, as_json=json)


@app.command()
def approve(
    context: typer.Context,
    identifiers: ApprovalIds,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the decision.")] = None,
    digest: Digest = None,
    graph: Graph = None,
    as_: As = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> int:
    """Approve operations, each for itself, and carry their threads on. Several are shown first."""
    return _decide(context, identifiers, "approve", reason, digest, graph, as_, no_wait, json)


@app.command()
def reject(
    context: typer.Context,
    identifiers: ApprovalIds,
    reason: Annotated[str, typer.Option("--reason", help="Goes to the agent.", show_default=False)],
    digest: Digest = None,
    graph: Graph = None,
    as_: As = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> int:
    """Reject operations, each for itself, and carry their threads on. Several are shown first."""
    return _decide(context, identifiers, "reject", reason, digest, graph, as_, no_wait, json)


@app.command()
def respond(
    context: typer.Context,
    identifier: ApprovalId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the agent gets.", show_default=False)],
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the decision.")] = None,
    digest: Digest = None,
    graph: Graph = None,
    as_: As = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> int:
    """Answer in an operation's place: it is not executed, and the agent gets your text as its result."""
    return _decide(context, [identifier], "respond", reason, digest, graph, as_, no_wait, json, response=text)


@app.command()
def withdraw(
    context: typer.Context,
    identifier: ApprovalId,
    reason: Annotated[str | None, typer.Option("--reason", help="Goes to the agent.")] = None,
    graph: Graph = None,
    as_: As = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> int:
    """Take a request back, or an approval that has not been used yet."""
    return _decide(context, [identifier], "withdraw", reason, None, graph, as_, no_wait, json)


@app.command()
def policy(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML or TOML file.", show_default=False)],
    graph: Graph = None,
    json: Json = False,
) -> int:
    """Check a policy for approvals against a graph's operations, and show who decides about what."""
    from standfast.graph.cli import policy as command

    return command.check(file, graph=graph, as_json=json)


@app.command()
def edit(
    context: typer.Context,
    identifier: ApprovalId,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="JSON if it parses, else text; dots lead inside; may be repeated."
        ),
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="A JSON object of arguments.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the decision.")] = None,
    digest: Digest = None,
    graph: Graph = None,
    as_: As = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> int:
    """Change an operation, approve it, carry its thread on."""
    from standfast.graph.cli import decide

    return decide.decide(
        context.obj,
        identifier,
        "edit",
        reason,
        graph=graph,
        as_=as_,
        digest=digest,
        wait=not no_wait,
        as_json=json,
        changes=changes or (),
        changes_from=source,
    )


@app.command()
def resume(
    context: typer.Context,
    thread: Thread,
    answer: Annotated[
        str | None, typer.Argument(metavar="[ANSWER]", help="The answer to the thread's open question.")
    ] = None,
    json_answer: Annotated[bool, typer.Option("--json-answer", help="The answer is JSON, not text.")] = False,
    graph: Graph = None,
    as_: As = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> int:
    """Carry a thread on, with or without an answer."""
    from standfast.graph.cli import decide

    return decide.resume(
        context.obj,
        thread,
        answer,
        graph=graph,
        as_=as_,
        json_answer=json_answer,
        wait=not no_wait,
        as_json=json,
    )


@app.command()
def show(
    context: typer.Context,
    thread: Thread,
    json: Json = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the latest run's events as they come, until it ends or waits.")
    ] = False,
    after: Annotated[
        int, typer.Option(help="With --follow: from this event's number on; negative is the last so many.")
    ] = 0,
    graph: Graph = None,
) -> int:
    """Show everything that happened on a thread, in order."""
    if follow:
        from standfast.graph.cli import follow as following

        return following.follow(context.obj, thread, after=after, as_json=json)
    from standfast.graph.cli import look

    return look.show(context.obj, thread, graph=graph, as_json=json)


@app.command()
def cancel(context: typer.Context, thread: Thread, json: Json = False) -> int:
    """Cancel an unfinished run; what was done stays done."""
    from standfast.graph.cli import decide

    return decide.cancel(context.obj, thread, as_json=json)


@app.command()
def migrate(context: typer.Context, json: Json = False) -> int:
    """Bring the database's schema up to date."""
    from standfast.graph.cli import doctor as command

    return command.migrate(context.obj, as_json=json)


@app.command()
def doctor(context: typer.Context, json: Json = False) -> int:
    """Say what is configured, reachable and out of date."""
    from standfast.graph.cli import doctor as command

    return command.doctor(context.obj, as_json=json)


@db.callback()
def embedded(context: typer.Context) -> None:
    _help_alone(context)


@db.command("start")
def db_start(json: Json = False) -> int:
    """Start the embedded server and let it run until `db stop`."""
    from standfast.graph.cli import database

    return database.start(as_json=json)


@db.command("stop")
def db_stop(json: Json = False) -> int:
    """Stop the embedded server; what was committed is kept."""
    from standfast.graph.cli import database

    return database.stop(as_json=json)


@db.command("status")
def db_status(json: Json = False) -> int:
    """Say whether the embedded server runs (else exit code 1)."""
    from standfast.graph.cli import database

    return database.status(as_json=json)


def _decide(
    context: typer.Context,
    identifiers: Sequence[str],
    verb: Verb,
    reason: str | None,
    digest: str | None,
    graph: str | None,
    as_: str | None,
    no_wait: bool,
    json: bool,
    *,
    response: str | None = None,
) -> int:
    from standfast.graph.cli import decide

    if len(identifiers) > 1:
        return decide.decide_each(
            context.obj, identifiers, verb, reason, graph=graph, as_=as_, digest=digest, wait=not no_wait, as_json=json
        )
    return decide.decide(
        context.obj,
        identifiers[0],
        verb,
        reason,
        graph=graph,
        as_=as_,
        digest=digest,
        wait=not no_wait,
        as_json=json,
        response=response,
    )
