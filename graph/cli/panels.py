"""How `standfast --help` groups the commands.

Invariant: every command stands in one group; one that no group names would be shown last, under "More".
"""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup

PANELS: Final = {
    "Start and carry on": ("run", "resume", "emit", "complete", "retry", "cancel", "fork"),
    "People": ("approvals", "approve", "reject", "edit", "respond", "withdraw", "settle", "policy", "groups"),
    "Look": ("threads", "show", "runs", "waits", "history", "state", "diff", "artifacts", "audit"),
    "Operate": ("worker", "workers", "release", "park", "limits", "schedules", "outbox"),
    "Administer": ("doctor", "migrate", "prune", "db"),
}


class Panels(TyperGroup):
    """The whole command line; its help lists the commands by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # typer's own copies of click's types
        known = {name: command for name, command in self.commands.items() if not command.hidden}
        grouped = {name for names in PANELS.values() for name in names}
        panels = {**PANELS, "More": tuple(known.keys() - grouped)}
        width = max(map(len, known))
        limit = formatter.width - width - 6
        for panel, names in panels.items():
            rows = [(one.ljust(width), known[one].get_short_help_str(limit)) for one in names if one in known]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)
