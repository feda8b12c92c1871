"""The agent's parts in a graph of one's own, as docs/own-graph.md shows them; and LangChain's agents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from standfast.graph import Principal, Runtime
from tests.crash.support.scripted_model import ScriptedModel, call, script

PAGE: Final = Path(__file__).parents[2] / "docs" / "own-graph.md"
ANN: Final = Principal.vouched("ann@example.com")


def complaints() -> Any:
    """The graph of the page, from the page."""
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "Complaint" in one]
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(block.partition("with Runtime")[0].replace("import annotations", ""), str(PAGE), "exec"), names)
    return names["graph"]


async def test_the_page_s_graph_refunds_what_a_person_approved(database_url: str) -> None:
    async with Runtime(complaints(), database_url=database_url, name="complaints") as runtime:
        waiting = await runtime.ainvoke({"order": "7", "messages": []}, thread_id="t")
        (approval,) = waiting.approvals
        done = await runtime.aresume("t", approve=approval.id, as_=ANN)
    assert {"order": "7", "amount": "12.50"} == approval.arguments
    assert "12.50 for order 7 is on its way" == done.values["reply"]


@pytest.mark.guarantee("G6")
async def test_the_page_s_graph_takes_an_edit_and_a_rejection(database_url: str) -> None:
    async with Runtime(complaints(), database_url=database_url, name="complaints") as runtime:
        waiting = await runtime.ainvoke({"order": "7", "messages": []}, thread_id="edited")
        edited = await runtime.aresume("edited", edit=waiting.approvals[0].id, changes={"amount": "1.00"}, as_=ANN)
        waiting = await runtime.ainvoke({"order": "7", "messages": []}, thread_id="rejected")
        rejected = await runtime.aresume("rejected", reject=waiting.approvals[0].id, reason="too much", as_=ANN)
    assert "1.00 for order 7" in edited.values["reply"]
    assert "Rejected by ann@example.com: too much" == rejected.values["reply"]


async def test_an_agent_of_langchain_s_asks_and_goes_on_in_another_process(database_url: str) -> None:
    sent: list[str] = []

    @tool
    async def send(text: str) -> str:
        """Send a text."""
        sent.append(text)
        return f"sent {text}"

    def agent() -> Any:
        asking = HumanInTheLoopMiddleware(interrupt_on={"send": True})
        return create_agent(ScriptedModel(), [send], middleware=[asking])

    request = HumanMessage(script([call("send", text="hello")], "It is sent."))
    async with Runtime(agent(), database_url=database_url) as runtime:
        waiting = await runtime.ainvoke({"messages": [request]}, thread_id="t")
    (question,) = waiting.questions
    assert "send" == question.request["action_requests"][0]["name"]
    assert [] == sent
    async with Runtime(agent(), database_url=database_url) as runtime:
        done = await runtime.aresume("t", {"decisions": [{"type": "approve"}]})
    assert ["hello"] == sent
    assert "It is sent." == done.values["messages"][-1].text
