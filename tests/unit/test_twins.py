"""What help(), an editor and a first mistake meet: signatures, documentation, and one sentence for an error."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import fields
from typing import Any, TypedDict, get_type_hints

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from standfast.checkpoint import errors
from standfast.graph import Runtime
from standfast.graph.accepting import Options, RepeatedOptions, RequestOptions
from standfast.graph.runtime import AsyncRuntime
from standfast.graph.tracebacks import shortened
from standfast.graph.worker import WorkerOptions, WorkerSettings


class State(TypedDict, total=False):
    text: str


def runtime() -> Runtime:
    """One that is not open: what is said below is said before any database is asked."""
    graph = StateGraph(State)
    graph.add_node("only", lambda state: {})
    graph.add_edge(START, "only")
    graph.add_edge("only", END)
    return Runtime(graph, name="library", database_url="postgresql://nobody@nowhere.invalid/nothing")


def verbs() -> list[str]:
    """The async methods of a runtime, without the `a`; those that only its own parts call have no twin."""
    inner = {"decide", "answer", "carry_on", "drive", "put_aside", "end_cancelled"}
    found = {name for name in dir(AsyncRuntime) if name.startswith("a") and not name.startswith("_")}
    functions = {name[1:] for name in found if inspect.isfunction(inspect.getattr_static(AsyncRuntime, name))}
    assert inner <= functions
    return sorted(functions - inner)


def shown(signature: inspect.Signature) -> str:
    return str(signature).replace("AsyncIterator", "Iterator")


@pytest.mark.parametrize("verb", verbs())
def test_each_async_method_has_a_blocking_twin_of_the_same_signature(verb: str) -> None:
    expected, actual = [inspect.signature(getattr(Runtime, name)) for name in (f"a{verb}", verb)]
    if verb == "work":  # its event to stop is one of threads
        assert str(expected).replace("asyncio.Event", "threading.Event") == str(actual)
    else:
        assert shown(expected) == str(actual)
    assert verb == getattr(Runtime, verb).__name__
    assert not inspect.iscoroutinefunction(getattr(Runtime, verb))


@pytest.mark.parametrize("verb", verbs())
def test_no_method_hides_what_it_takes_and_each_says_what_it_does(verb: str) -> None:
    for name in (f"a{verb}", verb):
        method = getattr(Runtime, name)
        kinds = {one.kind for one in inspect.signature(method).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}, name
        assert len(inspect.getdoc(method) or "") > 20, name


def test_help_of_a_twin_speaks_of_twins() -> None:
    document = inspect.getdoc(Runtime.invoke) or ""
    assert "- `client_key`: the same key twice is one run." in document
    assert "`retry` gives it more" in document
    assert "aretry" not in document
    assert "`aretry` gives it more" in (inspect.getdoc(Runtime.ainvoke) or "")


@pytest.mark.parametrize(
    ("names", "dataclass", "left_out"),
    [
        (RequestOptions, Options, set()),
        (RepeatedOptions, Options, {"thread_id", "client_key", "on_busy", "deadline", "budget", "priority"}),
        (WorkerSettings, WorkerOptions, set()),
    ],
)
def test_options_as_keywords_are_those_of_their_class(names: Any, dataclass: Any, left_out: set[str]) -> None:
    expected = {one.name: get_type_hints(dataclass)[one.name] for one in fields(dataclass) if one.name not in left_out}
    assert expected == get_type_hints(names)


REFUSED = [
    (
        lambda one: one.invoke({"text": "a"}, {"configurable": {"thread_id": "1"}}),
        "invoke does not take LangGraph's config; give thread_id='1' instead.",
    ),
    (
        lambda one: one.invoke(Command(resume="yes"), config={"configurable": {"thread_id": "1"}}),
        "invoke does not take LangGraph's config; give thread_id='1' instead.",
    ),
    (
        lambda one: one.submit({"text": "a"}, config={"tags": []}),
        "submit does not take LangGraph's config; give thread_id='...' instead.",
    ),
    (lambda one: one.state({"configurable": {"thread_id": "1"}}, config={}), "state does not take LangGraph's config"),
    (
        lambda one: one.resume("t", approv="apr-1"),
        "resume takes no argument 'approv'; did you mean 'approve'? It",
    ),
    (lambda one: one.invoke({}, clientkey="a"), "invoke takes no argument 'clientkey'; did you mean 'client_key'?"),
    (lambda one: one.emit("paid", {}), "emit: missing a required argument: 'id'. It takes name, payload, id, match"),
    (lambda one: one.cancel("a", "b"), "cancel takes at most 1 argument by position, the"),
    (lambda one: one.stream_parts({}, {"configurable": {"thread_id": "1"}}), "stream_parts does not take LangGraph's"),
    (lambda one: one.work(parallel=3), "work takes no argument 'parallel'"),
    (lambda one: one.add_schedule("a", "* * * * *", {}, thread_id="t"), "add_schedule takes no argument 'thread_id'"),
    (lambda one: one.workers(limit=3), "workers takes no argument 'limit'. It takes no arguments"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_wrong_arguments_are_refused_in_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(errors.WrongArguments) as refused:
        call(runtime())
    assert refused.value.message.startswith(sentence)
    assert isinstance(refused.value, TypeError)
    assert "\n" not in refused.value.message


async def test_the_async_methods_refuse_langgraphs_config_too() -> None:
    with pytest.raises(errors.WrongArguments, match="ainvoke does not take LangGraph's config; give thread_id='1'"):
        await runtime().ainvoke({"text": "a"}, {"configurable": {"thread_id": "1"}})  # type: ignore[call-arg, arg-type]


def test_a_runtime_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(errors.RuntimeClosed, match=r"or call open\(\)"):
        runtime().threads()


def test_an_error_of_ours_comes_with_two_frames() -> None:
    def mine() -> None:
        runtime().invoke({"text": "a"})

    with pytest.raises(errors.RuntimeClosed) as refused:
        mine()
    frames = traceback.extract_tb(refused.value.__traceback__)
    assert [frames[0].name, "mine", "waiting"] == [one.name for one in frames]


def test_a_shortened_error_keeps_other_peoples_frames_and_its_cause() -> None:
    def of_a_node() -> None:
        raise KeyError("title")

    try:
        try:
            of_a_node()
        except KeyError as error:
            raise errors.InvalidRequest("refused") from error
    except errors.InvalidRequest as error:
        short = shortened(error)
    assert isinstance(short.__cause__, KeyError)
    assert ["of_a_node"] == [one.name for one in traceback.extract_tb(short.__cause__.__traceback__)][-1:]
    assert "During handling" not in "".join(traceback.format_exception(short))
