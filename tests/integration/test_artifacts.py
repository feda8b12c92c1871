"""What is too large for a checkpoint stands beside it, for as long as a thread refers to it, and no longer."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.artifacts import PIECE
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.graph import Artifact, Effect, OperationContext, Policy, Runtime, artifacts, notify, operation
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script

Open = Callable[..., Any]
Query = Callable[..., list[tuple[Any, ...]]]
MEGABYTE = 1_000_000
DAY = timedelta(days=1)


class State(TypedDict, total=False):
    document: Artifact | None
    path: str
    count: int
    digest: str
    answer: Any


def noise(size: int, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(params=["postgres", "elsewhere"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Artifacts in Postgres, and in a folder that fsspec reaches."""
    if request.param == "postgres":
        return Settings()
    pytest.importorskip("fsspec")
    return Settings(artifacts_url=(tmp_path / "artifacts").as_uri())


@pytest.fixture
async def kept(store: Store, settings: Settings) -> Store:
    """The rows of the test's database, with the place of the settings."""
    return Store.over(store.database, TypeRegistry(), settings=settings)


@pytest.fixture
def running(database_url: str, settings: Settings) -> Open:
    """`async with running(node, ...) as runtime:` a graph of these nodes, one after the other."""

    @asynccontextmanager
    async def opening(*nodes: Callable[..., Any]) -> AsyncIterator[Runtime]:
        graph = StateGraph(State)
        for at, node in enumerate(nodes):
            graph.add_node(f"node{at}", node)
        names = [START, *(f"node{at}" for at in range(len(nodes))), END]
        for before, after in itertools.pairwise(names):
            graph.add_edge(before, after)
        async with Runtime(graph, database_url=database_url, settings=settings) as runtime:
            yield runtime

    return opening


def stored_bytes(query: Query, *tables: str) -> int:
    return sum(int(query(f"select coalesce(sum(pg_column_size(x.*)), 0) from {table} x")[0][0]) for table in tables)


CHECKPOINTS = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "operations", "run_events", "runs")


# -- passing through a run


@pytest.mark.guarantee("G13")
async def test_fifty_megabytes_pass_through_twenty_steps_with_checkpoints_under_one(
    database_url: str, settings: Settings, tmp_path: Path, query: Query
) -> None:
    file = tmp_path / "scan.pdf"
    file.write_bytes(noise(50 * MEGABYTE))

    async def take(state: State) -> State:
        return {"document": await artifacts().put(Path(state["path"])), "count": 1}

    async def work(state: State) -> State:
        document = state["document"]
        assert document is not None
        digest = hashlib.sha256(state.get("digest", "").encode())
        async for piece in artifacts().pieces(document):
            digest.update(piece)
        return {"document": document, "count": state["count"] + 1, "digest": digest.hexdigest()}

    graph = StateGraph(State)
    graph.add_node("take", take)
    graph.add_node("work", work)
    graph.add_edge(START, "take")
    graph.add_edge("take", "work")
    graph.add_conditional_edges("work", lambda state: "work" if state["count"] < 20 else END)
    async with Runtime(graph, database_url=database_url, settings=settings) as runtime:
        tracemalloc.start()
        result = await runtime.ainvoke({"path": str(file)}, thread_id="t")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        document = result.values["document"]
        assert Artifact(
            hashlib.sha256(file.read_bytes()).hexdigest(), "scan.pdf", "application/pdf", 50 * MEGABYTE
        ) == (document)
        await runtime.asave_artifact(document, tmp_path / "copy.pdf")
    assert 20 == result.values["count"]
    assert stored_bytes(query, *CHECKPOINTS) < MEGABYTE
    assert most < 15 * MEGABYTE, "the document is never in memory as a whole"
    assert (tmp_path / "copy.pdf").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("result", "media_type"),
    [
        (noise(400_000), "application/octet-stream"),
        ("long ü " * 60_000, "text/plain; charset=utf-8"),
        ({"rows": [{"price": Decimal("1.10"), "at": (1, "x")}] * 20_000}, "application/vnd.standfast.value"),
        ("\ud800" * 200_000, "application/vnd.standfast.value"),
    ],
    ids=["bytes", "text", "rows", "surrogates"],
)
async def test_a_large_result_becomes_an_artifact_that_the_next_operation_reads_back_as_it_was(
    opened: Open, query: Query, result: Any, media_type: str
) -> None:
    seen: list[Any] = []

    @operation(policy=Policy(effect=Effect.READ))
    async def fetch() -> Any:
        """Fetch much."""
        return result

    @operation(policy=Policy(effect=Effect.READ))
    async def use(context: OperationContext) -> str:
        """Use what was fetched."""
        [kept] = await context_artifacts(context)
        seen.append(await context.artifacts.load(await context.artifacts.find(kept.sha256[:16])))
        return "used"

    async def context_artifacts(context: OperationContext) -> list[Artifact]:
        return [one.artifact for one in await runtime.aartifacts(thread_id=context.thread_id)]

    async with opened(fetch, use) as runtime:
        ended = await runtime.ainvoke(script([call("fetch")], [call("use")]), thread_id="t")
        [kept] = await runtime.aartifacts(thread_id="t")
    told = next(one for one in ended.messages if isinstance(one, ToolMessage))
    artifact = kept.artifact
    assert ("fetch", media_type) == (artifact.name, artifact.media_type)
    assert str(artifact) == told.text
    assert artifact == told.artifact
    assert [result] == seen
    assert stored_bytes(query, *CHECKPOINTS) < 100_000


async def test_a_result_below_the_threshold_stays_as_it_is(opened: Open, query: Query) -> None:
    @operation(policy=Policy(effect=Effect.READ))
    async def fetch() -> str:
        """Fetch something."""
        return "x" * 200_000

    async with opened(fetch) as runtime:
        await runtime.ainvoke(script([call("fetch")]), thread_id="t")
    assert [] == query("select sha256 from artifacts")


async def test_an_operation_returns_an_artifact_and_the_model_reads_one_line(opened: Open) -> None:
    @operation(policy=Policy(effect=Effect.IDEMPOTENT))
    async def render(context: OperationContext) -> dict[str, Any]:
        """Render a page."""
        return {"page": await context.artifacts.put(b"<p>", name="page.html"), "pages": 1}

    async with opened(render) as runtime:
        result = await runtime.ainvoke(script([call("render")]), thread_id="t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "render"]
        assert b"<p>" == await runtime.aread_artifact(known.result["page"])
    [told] = [one.text for one in result.messages if isinstance(one, ToolMessage)]
    sha256 = hashlib.sha256(b"<p>").hexdigest()
    assert f"Artifact 'page.html' (text/html, 3 bytes), id {sha256[:16]}" in told


async def test_what_an_operation_put_stays_though_only_its_id_is_recorded(opened: Open, clock: Clock) -> None:
    @operation(policy=Policy(effect=Effect.IDEMPOTENT))
    async def keep(context: OperationContext) -> str:
        """Keep a page."""
        return (await context.artifacts.put("a page", name="page")).sha256

    async with opened(keep) as runtime:
        await runtime.ainvoke(script([call("keep")]), thread_id="t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "keep"]
        clock.move(2 * DAY)
        assert 0 == await runtime.asweep_artifacts()
        assert b"a page" == await runtime.aread_artifact(known.result)


# -- contents


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
async def test_what_was_put_is_read_whatever_its_size(kept: Store, size: int) -> None:
    data = noise(size)
    artifact = await kept.artifacts.put(data, name="x", media_type="a/b")
    assert data == await kept.artifacts.read(artifact)
    assert [len(piece) for piece in [p async for p in kept.artifacts.pieces(artifact)]] == (
        [PIECE] * (size // PIECE) + ([size % PIECE] if size % PIECE else [])
    )


async def test_a_stream_and_the_same_content_by_many_at_once_are_one_artifact(
    kept: Store, running: Open, query: Query
) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * PIECE

    async def take(state: State) -> State:
        return {"document": await artifacts().put(stream(), name="stream")}

    async with running(take) as runtime:
        result, *others = await asyncio.gather(
            runtime.ainvoke({}, thread_id="t"),
            *(kept.artifacts.put(b"x" * 5 * PIECE, name="same", media_type="a/b") for _ in range(6)),
        )
    assert {result.values["document"].sha256} == {one.sha256 for one in others}
    assert [(True, 5 * PIECE)] == query("select stored, size from artifacts")


async def test_bytes_that_have_changed_are_not_handed_out_in_silence(
    kept: Store, settings: Settings, query: Query, tmp_path: Path
) -> None:
    artifact = await kept.artifacts.put(noise(1000), name="x", media_type="a/b")
    sealed = kept.sealer.seal(noise(1000, seed=8), at=("artifact_chunks", artifact.sha256, "0"))
    query("update artifact_chunks set bytes = %s", sealed)
    for path in (tmp_path / "artifacts").glob("*/*"):
        path.write_bytes(noise(1000, seed=8))
    with pytest.raises(errors.CorruptValue):
        await kept.artifacts.read(artifact)


@pytest.mark.parametrize("identifier", ["", "f" * 64, "abc", "%", "'; drop table artifacts", "x" * 70])
async def test_an_id_that_is_none_is_refused(kept: Store, identifier: str) -> None:
    with pytest.raises(errors.UnknownArtifact):
        await kept.artifacts.find(identifier)


def test_a_place_with_credentials_is_refused() -> None:
    from standfast.checkpoint.places import require_place

    with pytest.raises(errors.ConfigurationError) as refused:
        require_place("s3://key:hunter2@bucket/artifacts")
    assert "hunter2" not in str(refused.value)


# -- references


async def test_what_a_thread_refers_to_stays_and_what_nobody_refers_to_goes_after_its_grace(
    running: Open, kept: Store, clock: Clock, query: Query, tmp_path: Path
) -> None:
    async def take(state: State) -> State:
        return {"document": await artifacts().put(b"in a thread", name="a")}

    async with running(take) as runtime:
        result = await runtime.ainvoke({}, thread_id="t")
        loose = await runtime.aput_artifact(b"of nobody", name="b")
        assert 0 == await runtime.asweep_artifacts()
        clock.move(DAY + timedelta(seconds=1))
        assert 1 == await runtime.asweep_artifacts()
        with pytest.raises(errors.UnknownArtifact):
            await runtime.aread_artifact(loose)
        assert b"in a thread" == await runtime.aread_artifact(result.values["document"])

        query("delete from threads where id = 't'")
        assert 1 == await runtime.asweep_artifacts()
    assert [(0, 0, 0)] == query(
        """select (select count(*) from artifacts), (select count(*) from artifact_chunks),
                  (select count(*) from artifact_references)"""
    )
    assert [] == [path for path in (tmp_path / "artifacts").glob("**/*") if path.is_file()]


async def test_every_way_into_a_thread_makes_it_refer(running: Open, kept: Store, clock: Clock, query: Query) -> None:
    stranger = [
        await kept.artifacts.put(f"{number}".encode(), name=str(number), media_type="a/b") for number in range(4)
    ]

    async def write(state: State) -> State:
        notify("sent", {"with": stranger[2]})
        return {"document": stranger[1], "answer": interrupt("?")}

    async with running(write) as runtime:
        await runtime.ainvoke({"document": stranger[0]}, thread_id="t")
        await runtime.aresume("t", {"the": stranger[3]})
    refers = {str(row[0]) for row in query("select sha256 from artifact_references where thread_id = 't'")}
    assert {one.sha256 for one in stranger} == refers
    clock.move(2 * DAY)
    assert 0 == await kept.artifacts.sweep()


async def test_what_is_put_again_is_kept_for_a_day_from_then(kept: Store, clock: Clock) -> None:
    for _ in range(2):
        clock.move(0.9 * DAY)
        artifact = await kept.artifacts.put(b"x", name="x", media_type="a/b")
    clock.move(0.9 * DAY)
    assert 0 == await kept.artifacts.sweep()
    assert b"x" == await kept.artifacts.read(artifact)


async def test_a_sweep_comes_to_what_may_go_however_much_is_older_and_stays(
    kept: Store, clock: Clock, add_thread: Callable[[str], str]
) -> None:
    thread = add_thread("t")
    for number in range(3):
        await kept.artifacts.put(b"%d" % number, name="x", media_type="a/b", thread_id=thread)
    clock.move(DAY)
    await kept.artifacts.put(b"loose", name="x", media_type="a/b")
    clock.move(2 * DAY)
    assert 1 == await kept.artifacts.sweep(most=1)


async def test_where_nothing_would_refer_an_artifact_is_refused(kept: Store, running: Open) -> None:
    artifact = await kept.artifacts.put(b"x", name="x", media_type="a/b")
    async with running(lambda state: {}) as runtime:
        with pytest.raises(errors.UnstorableValue):
            await runtime.aemit("news", {"with": artifact}, id="e1")
    with pytest.raises(errors.UnstorableValue):
        kept.sealer.seal([artifact], at=("anywhere",))


async def test_a_value_that_names_swept_bytes_is_refused_before_it_is_stored(
    running: Open, kept: Store, query: Query
) -> None:
    gone = Artifact("0" * 64, "gone", "a/b", 1)
    async with running(lambda state: {}) as runtime:
        with pytest.raises(errors.UnknownArtifact):
            await runtime.ainvoke({"document": gone}, thread_id="t")
    assert [] == query("select id from threads")


@pytest.mark.parametrize("first", ["sweep", "reference"])
async def test_a_sweep_and_a_new_reference_never_both_win(
    store: Store, add_thread: Callable[[str], str], database_url: str, clock: Clock, query: Query, first: str
) -> None:
    add_thread("t")
    artifact = await store.artifacts.put(b"x", name="x", media_type="a/b")
    clock.move(2 * DAY)
    [(refer, params)] = store.artifacts.refer("t", {artifact.sha256: artifact})
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    async with await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast,public") as conn:
        if first == "sweep":
            await conn.execute("select * from sweep_artifacts_1(10)")
            await conn.execute("delete from artifacts where sha256 = %s", (artifact.sha256,))
            late = asyncio.create_task(store.artifacts.refer_now("t", {artifact.sha256: artifact}))
            async with asyncio.timeout(20):
                while query(waiting) == [(0,)]:
                    await asyncio.sleep(0.01)
            await conn.commit()
            with pytest.raises(errors.UnknownArtifact):
                await late
            assert [(0, 0)] == query(
                "select (select count(*) from artifacts), (select count(*) from artifact_references)"
            )
        else:
            await conn.execute(refer, params)
            assert 0 == await store.artifacts.sweep()
            await conn.commit()
            assert 0 == await store.artifacts.sweep()
            assert b"x" == await store.artifacts.read(artifact)


async def test_a_copied_thread_refers_too(
    store: Store, drive: Open, add_thread: Callable[[str], str], query: Query
) -> None:
    add_thread("source")
    artifact = await store.artifacts.put(b"x", name="x", media_type="a/b", thread_id="source")
    async with drive("target") as driven:
        await driven.saver.acopy_thread("source", "target")
    assert [("source",), ("target",)] == query(
        "select thread_id from artifact_references where sha256 = %s order by thread_id", artifact.sha256
    )
