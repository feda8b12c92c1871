"""Arguments and options that several commands share."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Final

import typer

Thread = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.", show_default=False)]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id, apr-...", show_default=False)]
ApprovalIds = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Ids of approvals, apr-...", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Only record it; do not carry the thread on.")]
As = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, on your word; else the system's user.")]
Graph = Annotated[
    str | None, typer.Option("--graph", metavar="MODULE:ATTR", help="Your own StateGraph, or a function returning one.")
]
Digest = Annotated[
    str | None, typer.Option("--digest", metavar="SHA256", help="Decide only if the approval is still for this digest.")
]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME", help="It ends after so long: 90s, 15m, 2h, 3d.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="LIST",
        help="The most that it may spend, such as model_calls=20,tokens=100000,steps=200,money=2.50,price=0.40/1.60 "
        "(for a million tokens in and out).",
    ),
]
Priority = Annotated[int, typer.Option("--priority", help="The greater, the sooner workers come for it.")]
State = Annotated[str | None, typer.Option("--state", help="Only those in this state, such as waiting.")]
OfGraph = Annotated[str | None, typer.Option("--graph", metavar="NAME", help="Only those of this graph.")]
OfThread = Annotated[str | None, typer.Option("--thread", metavar="ID", help="Only those of one thread.")]
Channels = Annotated[
    str | None,
    typer.Option("--channels", metavar="MODULE:ATTR", help="A list of channels, or a function returning one."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")]

token_file: Final[ContextVar[Path | None]] = ContextVar("standfast.token_file", default=None)
"""What `--token-file` named. The token itself is never an argument: those stand in every list of processes."""
