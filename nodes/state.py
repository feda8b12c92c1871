"""The state of the agent's graphs.

Invariant: a subgraph gives only `messages` back to its parent, a channel with a reducer; two calls that end in
the same step never meet in a plain key. Messages are a `DeltaChannel`: a checkpoint holds what a step added,
not the whole list again (docs/decisions/0001-messages.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Annotated, Any, Literal, NotRequired, Protocol, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.graph.message import _messages_delta_reducer
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic makes forms of it; of typing's own only from Python 3.12 on

S_contra = TypeVar("S_contra", contravariant=True)


class Node(Protocol[S_contra]):
    """A node: from the state and the configuration to the channels it writes."""

    def __call__(self, state: S_contra, config: RunnableConfig) -> Awaitable[dict[str, Any]]: ...


Messages = Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=1000)]


class ToolCall(TypedDict):
    """One call that a model asked for, with its place in the run."""

    id: str  # the provider's label; it may repeat, and identifies nothing here
    name: str
    args: dict[str, Any]
    turn: int
    index: int
    namespace: str
    mended: int  # how often this operation's arguments have been sent back in this run
    malformed: str | None  # why the call could not be read at all
    refused: NotRequired[int]  # how often this operation has failed as invalid in this run


class PlannedCall(TypedDict):
    """A validated call on its way to execution."""

    operation_id: str
    arguments: dict[str, Any]
    proposed: NotRequired[dict[str, Any]]  # what the model asked for, before people edited it
    needs_person: bool
    failed_checks: list[str]
    edited_by: str | None
    edit_needs_another: NotRequired[bool]  # the rule under which it was edited says so, whatever the edited call's says


class Delegation(TypedDict):
    """A task for a specialist."""

    call: ToolCall


class Outcome(TypedDict):
    """What a run came to."""

    status: Annotated[
        Literal["done", "failed", "unknown_outcome"], Field(description="unknown_outcome: somebody gave a call up")
    ]
    answer: Annotated[str, Field(description="What the model said at the end")]
    effects: Annotated[list[dict[str, Any]], Field(description="What was done outside, such as a published report")]
    rejected: Annotated[
        list[dict[str, Any]], Field(title="Declined", description="Calls that people declined, with their reasons")
    ]
    unknown: NotRequired[
        Annotated[
            list[dict[str, Any]], Field(description="Calls that may have taken effect, and that somebody gave up")
        ]
    ]
    reason: NotRequired[Annotated[str, Field(description="Why it failed")]]


class AgentState(TypedDict):
    """The main graph."""

    messages: Messages
    turn: NotRequired[int]  # of the last answer, within its run; made from the messages each time
    outcome: NotRequired[Outcome]


class AgentInput(TypedDict):
    """What is wanted. One message of a person is a request; several are a conversation that ends with one."""

    __pydantic_config__ = ConfigDict(title="Request")  # type: ignore[misc]  # the form's heading

    messages: Annotated[
        list[AnyMessage],
        Field(title="Messages", description="What is wanted, in a person's words"),
    ]


class AgentOutput(TypedDict):
    """The conversation, and what the run came to."""

    __pydantic_config__ = ConfigDict(title="Result")  # type: ignore[misc]

    messages: Annotated[list[AnyMessage], Field(title="Conversation", description="Requests, answers and results")]
    outcome: NotRequired[
        Annotated[
            Outcome,
            Field(title="What came of it", description="The answer, the effects, and the proposals that were declined"),
        ]
    ]


class AgentContext(TypedDict, total=False):
    """How a request is carried out. It is fixed when the request is accepted."""

    __pydantic_config__ = ConfigDict(title="Options")  # type: ignore[misc]

    documents: Annotated[
        list[str],
        Field(title="Documents", description="Files and folders that may be searched; read once, when it is accepted"),
    ]
    model: Annotated[str, Field(title="Model", description="offline, or openai:NAME for any OpenAI-compatible server")]
    reports_dir: Annotated[str, Field(title="Reports", description="The folder that reports are published into")]


class OperationState(TypedDict):
    """One tool call on its way: `call`, as it was asked for, and `messages`, whose last one tells what became of it.

    That is a `ToolMessage`: its `status` is `success` or `error`, its text is what a model is told. `planned`, `round`,
    `granted` and `note` belong to the nodes.
    """

    call: ToolCall
    planned: NotRequired[PlannedCall]
    round: NotRequired[int]
    granted: NotRequired[bool]
    note: NotRequired[str]
    messages: Messages


class OperationResult(TypedDict):
    """What a tool call's subgraph gives back to its parent: messages only."""

    messages: Messages


class SpecialistState(TypedDict):
    """A specialist's own conversation; it is invoked inside a node, so nothing of it is shared."""

    messages: Messages
    turn: NotRequired[int]
    namespace: str


def proposal(name: str, arguments: Mapping[str, Any], *, at: str, index: int = 0) -> ToolCall:
    """A call that your own graph proposes, for the field `call` of `OperationState`.

    `at` names its place in the run, and `index` tells several calls of one place apart: the same place and index is the
    same operation, whenever it is come by again. A loop that means another one each time says so in `at`.
    """
    return {
        "id": f"{at}-{index}",
        "name": name,
        "args": dict(arguments),
        "turn": 0,
        "index": index,
        "namespace": f"own:{at}",
        "mended": 0,
        "malformed": None,
    }


def messages_of_run(messages: list[AnyMessage], run_id: str) -> list[AnyMessage]:
    """The messages from the run's own request on; one that was given as messages begins with the last of a person."""
    people = 0
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].id == request_id(run_id):
            return messages[position:]
        if people == 0 and isinstance(messages[position], HumanMessage):
            people = position
    return messages[people:]


def answers_since_request(messages: list[AnyMessage]) -> int:
    """How often the model has answered since a person last said something."""
    answers = 0
    for one in reversed(messages):
        if isinstance(one, HumanMessage):
            break
        answers += isinstance(one, AIMessage)
    return answers


def request_id(run_id: str) -> str:
    """The id of the message that holds a run's request."""
    return f"request-{run_id}"


def answered(messages: list[AnyMessage]) -> list[AnyMessage]:
    """The conversation as a provider takes it: each tool call is followed by exactly one tool message.

    A call of a run that was cancelled or superseded has none; it gets one that says so, in its place. A
    provider's call ids may repeat from turn to turn, so each answer is matched within its own turn.
    """
    whole: list[AnyMessage] = []
    for position, one in enumerate(messages):
        whole.append(one)
        if isinstance(one, AIMessage):
            results = _results_after(messages, position)
            whole.extend(
                ToolMessage(
                    "This call was not carried out: its run ended before it.",
                    tool_call_id=call["id"] or "",
                    name=call["name"] or "",
                    status="error",
                )
                for call in [*one.tool_calls, *one.invalid_tool_calls]
                if call["id"] not in results
            )
    return whole


def _results_after(messages: list[AnyMessage], position: int) -> set[str]:
    results = set()
    for one in messages[position + 1 :]:
        if not isinstance(one, ToolMessage):
            break
        results.add(one.tool_call_id)
    return results


def last_answer(messages: list[AnyMessage]) -> str:
    """The text of the model's last message."""
    for one in reversed(messages):
        if isinstance(one, AIMessage):
            return str(one.text)
        if isinstance(one, HumanMessage):
            break
    return ""
