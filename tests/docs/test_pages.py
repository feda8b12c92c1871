"""The other pages, each done from top to bottom. What a page takes for granted stands here as its preamble."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from langchain_openai import ChatOpenAI

from tests.docs.pages import blocks, pages
from tests.servers.openai import OpenAIServer, Reply, ToolCall

OTHERS: Final = {  # each has a test of its own
    "README.md",
    "docs/approvals.md",
    "docs/tutorial.md",
    "docs/how-to/own-model.md",
    "docs/how-to/mcp-tools.md",
    "docs/how-to/pgbouncer.md",
}

GRAPH: Final = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
from standfast.graph import wait_for_event
class State(TypedDict, total=False):
    amount: int
    currency: str
async def note(state): return {}
graph = StateGraph(State)
graph.add_node("note", note)
graph.add_edge(START, "note")
"""
REQUEST: Final = "'Compare what the licences ask, and publish a report' --docs notebooks/documents/bsd-3-clause.txt"
BADGE: Final = """
from standfast.graph import Principal
async def badge(credential):
    if credential != "badge-7":
        raise PermissionError
    return Principal.verified("kim", by="badge")
"""
PREAMBLES: Final[Mapping[str, str]] = {
    "docs/failures.md": "class bank:\n    class AccountLocked(Exception): ...",
    "docs/own-graph.md": GRAPH + "bank = None",
    "docs/how-to/own-tools.md": "bank = post = press = None",
    "docs/how-to/own-model.md": "server = ''",
    "docs/how-to/mcp-tools.md": "model = None",
    "docs/how-to/artifacts.md": GRAPH,
    "docs/how-to/deploying.md": "from standfast.graph import build_agent\nagent = build_agent()",
    "docs/how-to/messages.md": GRAPH,
    "docs/how-to/studio.md": GRAPH,
    "docs/how-to/time-travel.md": GRAPH + "from standfast.graph import Runtime",
    "docs/how-to/waiting.md": GRAPH,
}


def before_audit(here: Any) -> None:
    """A report that was asked for, approved and published."""
    here.before(f"standfast run {REQUEST} --as robin --thread thread-8d5efffc7e0b480e")
    here.before("standfast approve $(standfast approvals --json | grep -o 'apr-[0-9a-f]*' | head -1)")
    here.before("standfast audit anchor")


def before_identity(here: Any) -> None:
    """A report that waits, from then on an authenticator, and kim's token."""
    here.before(f"standfast run {REQUEST}")
    here.stands_for(
        "apr-544d0701b60efd5a", here.before("standfast approvals --json | grep -o 'apr-[0-9a-f]*' | head -1").strip()
    )
    (here.folder / "badges.py").write_text(BADGE)
    here.before("export PYTHONPATH=$PWD STANDFAST_AUTHENTICATOR=badges:badge && echo badge-7 > ~/.standfast-token")


BEFORE: Final[Mapping[str, Callable[[Any], None]]] = {
    "docs/audit.md": before_audit,
    "docs/identity.md": before_identity,
}


@pytest.mark.parametrize("page", sorted({page for page in pages() if blocks(page)} - OTHERS))
def test_what_the_page_says_can_be_done(page: str, walk: Any) -> None:
    here = walk(page)
    exec(PREAMBLES.get(page, ""), here.names)
    BEFORE.get(page, lambda _: None)(here)
    here.through()


def test_what_the_page_about_models_says_can_be_done(walk: Any, openai_server: OpenAIServer) -> None:
    openai_server.script(Reply(when="France", text="Paris."), Reply(when="Italy", text="Rome."))
    here = walk("docs/how-to/own-model.md", env={"SERVER": openai_server.url})
    here.names["server"] = openai_server.url
    here.through()


def test_what_the_page_about_mcp_says_can_be_done(walk: Any, openai_server: OpenAIServer) -> None:
    openai_server.script(
        Reply(when="Put two", calls=(ToolCall(name="in_stock", arguments={"item": "lamp"}),)),
        Reply(when='"content": "3"', calls=(ToolCall(name="reserve", arguments={"item": "lamp", "count": 2}),)),
        Reply(when="2 lamp reserved", text="Two lamps are put aside."),
    )
    here = walk("docs/how-to/mcp-tools.md")
    here.names["model"] = ChatOpenAI(model="test-model", base_url=openai_server.base_url, api_key="none", max_retries=0)
    here.through()


@pytest.mark.parametrize("page", [page for page in pages() if any(one.language == "python" for one in blocks(page))])
def test_the_python_of_the_page_uses_no_name_that_nobody_defines(
    page: str, undefined: Callable[[str, str], str]
) -> None:
    assert "" == undefined(page, PREAMBLES.get(page, "bank = None" if page == "README.md" else ""))
