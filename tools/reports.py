"""The tool that acts: `publish_report`, and the checks that stand between a proposed report and its approval.

Invariant: one operation id is one report. A file is named by the id and appears whole or not at all; a server
gets the id as its Idempotency-Key.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import anyio.to_thread
import httpx
from pydantic import BaseModel, ConfigDict, Field

from standfast.checkpoint.crashpoints import reach
from standfast.tools.operations import CheckContext, Effect, OperationContext, Policy, operation
from standfast.tools.retries import RetryPolicy

_REQUEST_SECONDS: Final = 30.0


class Quotation(BaseModel):
    """A sentence taken word for word from a passage."""

    model_config = ConfigDict(extra="forbid")

    document: str = Field(description="The document's name")
    passage: int = Field(ge=0, description="The passage's number")
    quote: str = Field(min_length=1, description="The words as they stand there")


class Source(BaseModel):
    """A document that the report rests on."""

    model_config = ConfigDict(extra="forbid")

    document: str = Field(description="The document's name")
    sha256: str = Field(description="The document's SHA-256, as search_documents gave it")


async def sources_were_read(arguments: Mapping[str, Any], context: CheckContext) -> Sequence[str]:
    """Every quotation stands word for word in a passage that this run read; every source is one of its documents."""
    failed = []
    hashes = {one.name: one.sha256 for one in await context.documents.members(context.run.collection_id)}
    for number, quotation in enumerate(arguments["quotations"], 1):
        document, passage, quote = quotation["document"], quotation["passage"], quotation["quote"]
        where = f"quotation {number} ({document}, passage {passage})"
        if (document, passage) not in context.passages_read:
            failed.append(f"{where}: this passage was not read in this run")
            continue
        found = await context.documents.passages(context.run.collection_id, document, first=passage, last=passage)
        if not found or _squeezed(quote) not in _squeezed(found[0]["text"]):
            failed.append(f"{where}: {_shortened(quote)!r} does not stand there word for word")
        elif _squeezed(quote) not in _squeezed(arguments["body"]):
            failed.append(f"{where}: {_shortened(quote)!r} is listed but does not stand in the body")
    for source in arguments["sources"]:
        if source["document"] not in hashes:
            failed.append(f"source {source['document']!r} is not a document of this run")
        elif hashes[source["document"]] != source["sha256"]:
            failed.append(f"source {source['document']!r} has the hash {hashes[source['document']]}")
    quoted = {one["document"] for one in arguments["quotations"]}
    unlisted = sorted(quoted - {one["document"] for one in arguments["sources"]})
    return [*failed, *(f"{one!r} is quoted but not listed as a source" for one in unlisted)]


@operation(
    policy=Policy(effect=Effect.IDEMPOTENT, approval=True, timeout=30, retry=RetryPolicy()),
    checks=[sources_were_read],
)
async def publish_report(
    title: Annotated[str, Field(min_length=1)],
    body: Annotated[str, Field(min_length=1)],
    quotations: list[Quotation],
    sources: list[Source],
    context: OperationContext,
) -> dict[str, str]:
    """Publish a report in Markdown. Each quotation must stand word for word in a passage you read, and in the body."""
    settings = context.run.settings
    if settings.reports_url:
        report = {
            "title": title,
            "body": body,
            "quotations": [one.model_dump() for one in quotations],
            "sources": [one.model_dump() for one in sources],
        }
        async with httpx.AsyncClient(timeout=_REQUEST_SECONDS) as client:
            response = await client.post(
                settings.reports_url, json=report, headers={"Idempotency-Key": context.operation_id}
            )
        response.raise_for_status()
        return {"published": settings.reports_url, "operation_id": context.operation_id}
    assert settings.reports_dir is not None
    path = Path(settings.reports_dir) / f"{_slug(title)}-{context.operation_id[3:11]}.md"
    text = f"# {title}\n\n{body.rstrip()}\n"
    await anyio.to_thread.run_sync(lambda: write_whole(path, text))
    return {"published": str(path), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a crash leaves all of it or nothing, and a second time changes nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")  # the same name again: a killed attempt leaves nothing behind
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        reach("report.written")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _squeezed(text: str) -> str:
    """Line breaks, indentation and quote marks at line starts do not count in a comparison word for word."""
    return " ".join(re.sub(r"^\s*>", " ", text, flags=re.MULTILINE).split())


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "report"
