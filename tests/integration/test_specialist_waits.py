"""What a specialist's own operations wait for is waited for like anything else, across processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from standfast.graph import Effect, Policy, Runtime, operation, wait_for_event
from tests.crash.support.nested_agent import nested_agent
from tests.crash.support.scripted_model import call, script

Query = Callable[..., list[tuple[Any, ...]]]


@operation(policy=Policy(effect=Effect.READ))
async def price(market: str) -> str:
    """The price at the market, when it has opened."""
    opened = await wait_for_event("open", match=market)
    assert opened is not None
    return f"{market}: {opened.payload}"


def opened(database_url: str) -> Runtime:
    return Runtime(nested_agent(operations=[price]), database_url=database_url)


@pytest.mark.guarantee("G7")
async def test_a_specialists_own_waits_end_in_another_process_each_by_its_own_event(
    database_url: str, query: Query
) -> None:
    task = script([call("price", market="north"), call("price", market="south")], "The prices are known.")
    request = script([call("delegate", specialist="writer", task=task)], "Both are known.")
    async with opened(database_url) as runtime:
        waiting = await runtime.ainvoke(request, thread_id="t")
        assert "waiting" == waiting.status
    open_now = "select count(*) from waits where state = 'open' and kind = 'event'"
    assert [(2,)] == query(open_now)
    async with opened(database_url) as other:
        await other.aemit("open", 7, match="south", id="south")
        assert "waiting" == (await other.aresume("t")).status
        assert [(1,)] == query(open_now)
    stop = asyncio.Event()
    async with opened(database_url) as worker:
        working = asyncio.create_task(worker.awork(stop=stop))
        await worker.aemit("open", 9, match="north", id="north")
        async with asyncio.timeout(30):
            while (ended := await worker.aresult("t")).status == "waiting":
                await asyncio.sleep(0.05)
        stop.set()
        await working
    assert ("succeeded", "Both are known.") == (ended.status, ended.messages[-1].text)
    # Each was called once to wait and once to end; nobody's call was repeated for the sake of the other's.
    ends = "select state, count(*) from attempts group by state order by state"
    assert {"succeeded", "waiting"} <= {state for state, _ in query(ends)}
    done = query("select count(*) from operations where name = 'price' and state = 'succeeded'")
    assert [(2,)] == done
