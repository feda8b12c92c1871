"""HTML that cannot be broken out of, and the one style sheet of all displays.

Invariant: text becomes markup in `element` only, where it is escaped and what is invisible in it is shown. There is no
script and no address in it that a browser would load. Colours follow the page: Jupyter's theme if there is one, else
the system's.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from standfast.graph.visible import plain


class Html(str):
    """A piece of finished markup."""

    __slots__ = ()


Piece = Html | str | int | float | None
"""What stands in an element: markup, or text to be escaped; None is nothing."""

_VOID: Final = frozenset({"br", "hr", "path", "rect", "circle", "line"})

# The first colour is for light pages, the second for dark ones. Browsers without light-dark() get the first.
COLOURS: Final = {
    "ink": ("#1c2128", "#e4e8ee"),
    "dim": ("#59636e", "#9aa5b1"),
    "line": ("#d0d7de", "#3d444d"),
    "paper": ("#ffffff", "#15191f"),
    "shade": ("#f5f7f9", "#1e242c"),
    "blue": ("#0860c4", "#79b4ff"),
    "green": ("#1a7f37", "#5cc878"),
    "amber": ("#8f5a00", "#e3b14a"),
    "red": ("#c4252f", "#ff8078"),
    "violet": ("#7a44c4", "#c09aff"),
}

# `&` is our class, twice: a notebook has rules of its own for tables and code, and ours are to win.
_RULES: Final = """
.standfast{color-scheme:light dark;font:13px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
color:var(--ink);background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:12px 16px;margin:4px 0;
max-width:70em;box-sizing:border-box;overflow-x:auto}
[data-jp-theme-light="true"] .standfast{color-scheme:light}
[data-jp-theme-light="false"] .standfast,.vscode-dark .standfast{color-scheme:dark}
.vscode-light .standfast{color-scheme:light}
& .head{display:flex;flex-wrap:wrap;gap:4px 10px;align-items:baseline;margin-bottom:6px}
& .head b{font-size:14px}
& .dim{color:var(--dim)}
& code,& pre{font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;
color:inherit;background:none;padding:0}
& pre{background:var(--shade);border:0;border-radius:6px;padding:8px 10px;margin:6px 0;white-space:pre-wrap;
word-break:normal;overflow-wrap:anywhere;max-height:22em;overflow-y:auto}
& p{margin:6px 0;overflow-wrap:anywhere}
& .tag{display:inline-block;border:1px solid currentColor;border-radius:10px;padding:0 8px;font-size:12px;
font-weight:600;white-space:nowrap}
& .blue{color:var(--blue)}& .green{color:var(--green)}& .amber{color:var(--amber)}
& .red{color:var(--red)}& .violet{color:var(--violet)}
& table{border-collapse:collapse;border:0;margin:6px 0;font-size:13px;color:inherit;table-layout:auto}
& tr,& tbody tr:nth-child(odd),& tbody tr:nth-child(even),& tbody tr:hover{background:none}
& th,& td{border:0;border-top:1px solid var(--line);padding:3px 14px 3px 0;text-align:left;
vertical-align:top;overflow-wrap:break-word;max-width:30em;white-space:normal}
& thead th{border-top:0;color:var(--dim);font-weight:600;white-space:nowrap}
& tbody th{font-weight:600;white-space:nowrap}
& td.no{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
& time,& .name{white-space:nowrap;font-variant-numeric:tabular-nums}
& del,& ins{white-space:pre-line}
& del{color:var(--red);text-decoration:none}& ins{color:var(--green);text-decoration:none}
& del::before{content:"\\2212  "}& ins::before{content:"+ "}
& details summary{cursor:pointer;color:var(--dim)}
& svg{max-width:100%;height:auto;display:block}
"""

STATUS_COLOURS: Final = {
    "queued": "dim",
    "open": "amber",
    "running": "blue",
    "executing": "blue",
    "waiting": "amber",
    "planned": "dim",
    "succeeded": "green",
    "approved": "green",
    "reconciled": "green",
    "edited": "green",
    "answered": "green",
    "failed": "red",
    "rejected": "red",
    "abandoned": "red",
    "unknown": "red",
    "needs_attention": "red",
    "cancelled": "dim",
    "pending": "amber",
    "delivered": "green",
    "dead": "red",
    "expired": "dim",
    "withdrawn": "dim",
}


def escaped(text: object) -> Html:
    """Text as markup."""
    return Html(html.escape(plain(text)))


def element(tag: str, *inside: Piece, **attributes: object) -> Html:
    """One element. `class_` is its class, and `_` in other names of attributes is `-`; None leaves one out."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Html(f"<{tag}{given}/>")
    return Html(f"<{tag}{given}>{joined(inside)}</{tag}>")


def joined(pieces: Iterable[Piece], between: str = "") -> Html:
    """Pieces one after the other."""
    parts = [one if isinstance(one, Html) else escaped(one) for one in pieces if one is not None]
    return Html(between.join(parts))


def display(*inside: Piece) -> Html:
    """A whole display: the style sheet, and a box with these pieces."""
    return Html(f"<style>{_sheet()}</style>{element('div', *inside, class_='standfast')}")


def tag(state: str) -> Html:
    """A state, in the colour that it has everywhere."""
    return element("span", state.replace("_", " "), class_=f"tag {STATUS_COLOURS.get(state, 'dim')}")


def table(headings: Sequence[str], rows: Sequence[Sequence[Piece]]) -> Html:
    """Rows below their headings; a number stands right."""
    head = element("thead", element("tr", *(element("th", one) for one in headings)))
    body = (element("tr", *(_cell(one) for one in row)) for row in rows)
    return element("table", head, element("tbody", *body))


def facts(pairs: Iterable[tuple[str, Piece]]) -> Html:
    """What is known, by name; what is None is left out."""
    rows = (
        element("tr", element("th", name, class_="dim"), element("td", value))
        for name, value in pairs
        if value is not None
    )
    return element("table", element("tbody", *rows))


def time_of(at: datetime) -> Html:
    """A time of day, with the whole of it on hovering."""
    local = at.astimezone()
    return element("time", f"{local:%H:%M:%S}.{local.microsecond // 100_000}", title=f"{local:%Y-%m-%d %H:%M:%S %Z}")


def day_of(at: datetime) -> Html:
    """A day and a time, with the zone on hovering."""
    local = at.astimezone()
    return element("time", f"{local:%Y-%m-%d %H:%M}", title=f"{local:%Y-%m-%d %H:%M:%S %Z}")


def _cell(value: Piece) -> Html:
    number = isinstance(value, int | float)
    return element("td", f"{value:,}" if number else value, class_="no" if number else None)


def _sheet() -> str:
    light = "".join(f"--{name}:{pair[0]};" for name, pair in COLOURS.items())
    both = "".join(f"--{name}:light-dark({pair[0]},{pair[1]});" for name, pair in COLOURS.items())
    return f".standfast{{{light}}}@supports (color:light-dark(#000,#fff)){{.standfast{{{both}}}}}{_RULES}".replace(
        "\n", ""
    ).replace("&", ".standfast.standfast")
