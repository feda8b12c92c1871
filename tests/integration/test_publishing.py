"""What a person's answer to a report leads to, when the answer or the world is not as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.checkpoint import errors
from standfast.graph import Result, Runtime, build_agent

DOCUMENTS = Path(__file__).parents[2] / "notebooks" / "documents"
REQUEST = "Compare what GPL-3 and Apache-2.0 ask of someone who ships modified binaries, and publish a report"


async def proposed(runtime: Runtime, reports: Path) -> Result:
    return await runtime.ainvoke(REQUEST, thread_id="t", documents=[DOCUMENTS], reports_dir=reports, model="offline")


@pytest.mark.guarantee("G6")
async def test_an_edit_that_fails_the_checks_is_shown_again_with_them_and_not_published(
    database_url: str, tmp_path: Path
) -> None:
    async with Runtime(build_agent(), database_url=database_url) as runtime:
        waiting = await proposed(runtime, tmp_path)
        body = 'The GPL says "you owe me money" (gpl-3.0.txt, passage 20).'
        again = await runtime.aresume("t", edit=waiting.approvals[0].id, changes={"body": body})
        assert "waiting" == again.status
        (request,) = again.approvals
        assert request.id != waiting.approvals[0].id
        assert body == request.arguments["body"]
        assert request.failed_checks
        assert [] == list(tmp_path.iterdir())
        knowingly = await runtime.aresume("t", approve=request.id)
        assert "succeeded" == knowingly.status
    (report,) = tmp_path.iterdir()
    assert body in report.read_text()


async def test_an_edit_names_fields_that_there_are(database_url: str, tmp_path: Path) -> None:
    async with Runtime(build_agent(), database_url=database_url) as runtime:
        waiting = await proposed(runtime, tmp_path)
        (request,) = waiting.approvals
        quotations = [{**one, "text": "foo"} for one in request.arguments["quotations"]]
        for changes in ({"quotations": quotations}, {"title": ""}, {"titel": "x"}):
            with pytest.raises(errors.InvalidRequest):
                await runtime.aresume("t", edit=request.id, changes=changes)
        assert [request.id] == [one.id for one in await runtime.aapprovals()]


async def test_an_approved_effect_that_failed_is_no_success(database_url: str, tmp_path: Path) -> None:
    place = tmp_path / "reports"
    async with Runtime(build_agent(), database_url=database_url) as runtime:
        waiting = await proposed(runtime, place)
        place.write_text("in the way")  # also for root, whom no permission stops
        result = await runtime.aresume("t", approve=waiting.approvals[0].id)
    assert "failed" == result.status
    assert "publish_report" in str(result.reason)
