"""Operations: functions that an agent may call, each with the policy that it obeys; and their registry.

Invariant: an operation's policy is frozen at its declaration. What is not a plain read must say what happens
when it is called twice; nothing with an effect runs under a policy that nobody wrote.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, overload

from langchain_core.tools import BaseTool
from langchain_core.tools.base import create_schema_from_function
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.store.base import BaseStore
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from standfast.checkpoint import errors
from standfast.checkpoint.documents import Documents
from standfast.checkpoint.threads import Run
from standfast.tools.artifacts import ThreadArtifacts
from standfast.tools.described import described
from standfast.tools.failures import InvalidArguments
from standfast.tools.late import Outlive, on_a_thread
from standfast.tools.outcomes import Pending, Polled, Reconciled
from standfast.tools.retries import NEVER, RetryPolicy
from standfast.tools.rules import ASK, LET_THROUGH, Rule

_CONTEXT = "context"  # a parameter of this name receives the OperationContext and is hidden from the model


class Effect(StrEnum):
    """What a second call with the same key would do."""

    READ = "read"  # nothing: it may be repeated
    IDEMPOTENT = "idempotent"  # nothing: the receiver knows the key
    TRANSACTIONAL = "transactional"  # nothing: effect and record are one transaction of the same database
    AT_MOST_ONCE = "at_most_once"  # harm: never called again once it may have happened


@dataclass(frozen=True)
class Policy:
    """The rules of one operation.

    `approval`: whether a person must allow each call, or the `Rule`s that say which calls and who. `valid`: how
    long that request stays open, where its rule does not say. `timeout`: seconds for one attempt, async functions
    only. `retry`: further attempts after a failure that time can mend, by default none. `version`: bump it when what
    a grant stands for changes; one given under another version, or under other rules, is void.
    """

    effect: Effect
    approval: bool | Rule | Sequence[Rule] = False
    valid: timedelta = timedelta(days=7)
    timeout: float | None = None
    retry: RetryPolicy = NEVER
    version: str = "1"

    def __post_init__(self) -> None:
        object.__setattr__(self, "effect", Effect(self.effect))
        if self.valid <= timedelta(0):
            raise errors.InvalidOperation(f"a policy's validity must be positive, not {self.valid}")
        if self.timeout is not None and self.timeout <= 0:
            raise errors.InvalidOperation(f"a policy's timeout must be positive, not {self.timeout}")
        if not isinstance(self.retry, RetryPolicy):
            raise errors.InvalidOperation(f"a policy's retry is a RetryPolicy, not {self.retry!r}")
        if not isinstance(self.approval, bool | Rule):
            object.__setattr__(self, "approval", tuple(self.approval))
        if not all(isinstance(one, Rule) for one in self.rules):
            raise errors.InvalidOperation(f"a policy's approval is true, false or rules, not {self.approval!r}")

    @property
    def rules(self) -> Sequence[Rule]:
        """Who decides about which calls."""
        if isinstance(self.approval, bool):
            return (ASK,) if self.approval else (LET_THROUGH,)
        return (self.approval,) if isinstance(self.approval, Rule) else self.approval

    @property
    def has_own_rules(self) -> bool:
        """Whether the declaration says more than yes or no."""
        return not isinstance(self.approval, bool)


@dataclass(frozen=True)
class OperationContext:
    """What a running operation may know. Pass `operation_id` on as the idempotency key."""

    operation_id: str
    attempt: int
    run: Run
    documents: Documents
    artifacts: ThreadArtifacts
    connection: Any = None  # transactional operations only: the transaction that records the result
    memory: BaseStore | None = None  # what threads remember for each other
    progress: Callable[[Any], None] = lambda _: None  # tell those who follow the run how far it is
    ends_at: float | None = None  # by time.monotonic()
    outlive: Outlive = lambda _: None

    @property
    def time_left(self) -> float | None:
        """Seconds until this attempt is cut off, by its time-out, its deadline or the run's; None if by none."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())

    @property
    def thread_id(self) -> str:
        return self.run.thread_id


@dataclass(frozen=True)
class OutcomeContext:
    """What a `reconcile` or `poll` may know of the attempt that it is asked about.

    `operation_id` is the key that the attempt was made with; `looks` is how often it has been asked before.
    """

    operation_id: str
    arguments: Mapping[str, Any]
    attempt: int
    looks: int
    run: Run
    documents: Documents


Reconcile = Callable[[OutcomeContext], Awaitable[Reconciled]]
Poll = Callable[[Any, OutcomeContext], Awaitable[Polled]]
Check = Callable[[Mapping[str, Any], "CheckContext"], Awaitable[Sequence[str]]]


@dataclass(frozen=True)
class CheckContext:
    """What a check before approval may look at: the run, its documents, and the passages that it really read."""

    run: Run
    documents: Documents
    passages_read: frozenset[tuple[str, int]]  # (document name, passage number)


@dataclass(frozen=True)
class Operation:
    """One thing that an agent can do."""

    name: str
    description: str
    policy: Policy
    schema: type[BaseModel] = field(repr=False)
    call: Callable[[Mapping[str, Any], OperationContext], Awaitable[Any]] = field(repr=False)
    checks: tuple[Check, ...] = field(default=(), repr=False)
    version: str = "1"
    reconcile: Reconcile | None = field(default=None, repr=False)
    poll: Poll | None = field(default=None, repr=False)
    returns: TypeAdapter[Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for what in ("reconcile", "poll"):
            given = getattr(self, what)
            if given is not None and not inspect.iscoroutinefunction(given):
                raise errors.InvalidOperation(f"the {what} of operation {self.name!r} must be an async function")
        if self.reconcile is not None and self.policy.effect is not Effect.AT_MOST_ONCE:
            raise errors.InvalidOperation(
                f"operation {self.name!r} is {self.policy.effect}: it is called again when its outcome is unknown; "
                "reconcile= is for at_most_once"
            )
        if self.poll is not None and self.policy.effect is Effect.TRANSACTIONAL:
            raise errors.InvalidOperation(
                f"operation {self.name!r} is transactional: it ends with its transaction and cannot be pending"
            )

    def validate_result(self, result: Any) -> Any:
        """A result that a person told, as the operation would have returned it. Raises `InvalidRequest`."""
        if self.returns is None:
            return result
        try:
            return self.returns.validate_python(result)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(step) for step in one['loc']) or 'result'}: {one['msg']}" for one in error.errors()
            )
            raise errors.InvalidRequest(f"this is no result of {self.name}: {problems}") from error

    def validate(self, arguments: Any) -> dict[str, Any]:
        """The arguments as they will be executed. Raises `InvalidArguments` with a sentence for the model."""
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(f"the arguments of {self.name} must be an object, not {type(arguments).__name__}")
        try:
            valid = self.schema.model_validate(dict(arguments))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(step) for step in one['loc']) or 'arguments'}: {one['msg']}" for one in error.errors()
            )
            raise InvalidArguments(f"the arguments of {self.name} are not valid: {problems}") from error
        except Exception as error:  # a validator of the schema is the user's code
            raise InvalidArguments(
                f"the arguments of {self.name} could not be checked: {type(error).__name__}: {error}"
            ) from error
        known = [one.alias or name for name, one in self.schema.model_fields.items()]
        unknown = set(arguments) - set(known)
        if unknown:
            raise InvalidArguments(
                f"{self.name} has no argument {', '.join(sorted(map(repr, unknown)))}; it takes {', '.join(known)}"
            )
        return valid.model_dump(mode="json")

    def tool_schema(self) -> dict[str, Any]:
        """The operation as a tool in OpenAI's format, for `bind_tools`."""
        tool: dict[str, Any] = convert_to_openai_tool(self.schema)
        tool["function"]["name"] = self.name
        tool["function"]["description"] = self.description
        return tool


@overload
def operation(
    target: Callable[..., Any] | BaseTool,
    /,
    *,
    policy: Policy,
    name: str | None = None,
    description: str | None = None,
    checks: Sequence[Check] = (),
    version: str = "1",
    reconcile: Reconcile | None = None,
    poll: Callable[..., Awaitable[Polled]] | None = None,
) -> Operation: ...


@overload
def operation(
    *,
    policy: Policy,
    name: str | None = None,
    description: str | None = None,
    checks: Sequence[Check] = (),
    version: str = "1",
    reconcile: Reconcile | None = None,
    poll: Callable[..., Awaitable[Polled]] | None = None,
) -> Callable[[Callable[..., Any] | BaseTool], Operation]: ...


def operation(
    target: Callable[..., Any] | BaseTool | None = None,
    /,
    *,
    policy: Policy,
    name: str | None = None,
    description: str | None = None,
    checks: Sequence[Check] = (),
    version: str = "1",
    reconcile: Reconcile | None = None,
    poll: Callable[..., Awaitable[Polled]] | None = None,
) -> Operation | Callable[[Callable[..., Any] | BaseTool], Operation]:
    """Make an operation of a function or of any LangChain tool, as a decorator or by a call.

    A parameter named `context` receives the `OperationContext`; all others are the model's to fill.
    `reconcile(context)` is asked what became of an `at_most_once` call that did not report, and returns
    `Happened(result)`, `DidNotHappen()` or `CannotTell()`. `poll(handle)`, or `poll(handle, context)`, is asked how
    the work of a call that returned `Pending(handle)` is, and returns `Happened(result)`, `Failed(message)` or
    `Pending(handle)`. Both are async; their context is an `OutcomeContext`. Raises `InvalidOperation` for a
    declaration that cannot keep its promise.
    """
    if target is None:
        return lambda given: operation(
            given,
            policy=policy,
            name=name,
            description=description,
            checks=checks,
            version=version,
            reconcile=reconcile,
            poll=poll,
        )
    of = (
        _of_tool(target, policy, name, description)
        if isinstance(target, BaseTool)
        else _of_function(target, policy, name, description)
    )
    return replace(
        of, checks=tuple(checks), version=version, reconcile=reconcile, poll=None if poll is None else _poll(poll)
    )


def _poll(function: Callable[..., Awaitable[Polled]]) -> Poll:
    if _CONTEXT in inspect.signature(function).parameters or not inspect.iscoroutinefunction(function):
        return function

    async def poll(handle: Any, context: OutcomeContext) -> Polled:
        return await function(handle)

    return poll


def _returns(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """What checks a result that comes from outside; None if the function does not say what it returns."""
    try:
        declared = get_type_hints(function).get("return", Any)
        if declared is Any:
            return None
        return TypeAdapter(_without_pending(declared))
    except (NameError, TypeError, PydanticSchemaGenerationError, PydanticUndefinedAnnotation):
        return None  # not told in a way that can be checked


def _without_pending(declared: Any) -> Any:
    """`Report | Pending` returns a `Report` in the end."""
    if get_origin(declared) not in (Union, UnionType):
        return Any if declared is Pending else declared
    kept = [one for one in get_args(declared) if one is not Pending]
    return Union[tuple(kept)] if kept else Any  # noqa: UP007 - of a number of types that is not known here


def _of_function(
    function: Callable[..., Any],
    policy: Policy,
    name: str | None,
    description: str | None,
) -> Operation:
    title = name or function.__name__
    text = description or inspect.getdoc(function)
    if not text:
        raise errors.InvalidOperation(f"operation {title!r} needs a docstring or a description: the model reads it")
    is_async = inspect.iscoroutinefunction(function)
    if not is_async:
        _refuse_blocking(title, policy)
    parameters = inspect.signature(function).parameters
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY) for one in parameters.values()):
        raise errors.InvalidOperation(f"operation {title!r} must take named parameters only")
    takes_context = _CONTEXT in parameters
    schema = _pydantic(create_schema_from_function(title, function, filter_args=[_CONTEXT] if takes_context else []))

    async def call(arguments: Mapping[str, Any], context: OperationContext) -> Any:
        valid = schema.model_validate(dict(arguments))
        given = {key: getattr(valid, key) for key in schema.model_fields}
        if takes_context:
            given[_CONTEXT] = context
        if is_async:
            return await function(**given)
        return await on_a_thread(lambda: function(**given), context.outlive)

    return Operation(title, text, policy, schema, call, returns=_returns(function))


def _of_tool(
    tool: BaseTool,
    policy: Policy,
    name: str | None,
    description: str | None,
) -> Operation:
    title = name or tool.name
    if getattr(tool, "coroutine", True) is None:
        _refuse_blocking(title, policy)
    given = tool.args_schema
    schema = described(title, given) if isinstance(given, dict) else _pydantic(tool.get_input_schema())
    blocks = getattr(tool, "coroutine", True) is None

    async def call(arguments: Mapping[str, Any], context: OperationContext) -> Any:
        if blocks:
            return _plain(await on_a_thread(lambda: tool.invoke(dict(arguments)), context.outlive))
        return _plain(await tool.ainvoke(dict(arguments)))

    return Operation(title, description or tool.description, policy, schema, call)


def _plain(result: Any) -> Any:
    """A tool's blocks of text as the text that they are; anything else as it is."""
    if (
        isinstance(result, list)
        and result
        and all(isinstance(one, dict) and one.get("type") == "text" for one in result)
    ):
        return "\n".join(str(one["text"]) for one in result)
    return result


def _pydantic(schema: object) -> type[BaseModel]:
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise errors.InvalidOperation(f"the arguments of {schema!r} are not described by a pydantic 2 model")
    return schema


def _refuse_blocking(title: str, policy: Policy) -> None:
    if policy.timeout is not None:
        raise errors.InvalidOperation(
            f"operation {title!r} is a blocking function: nothing can stop it at a time-out; "
            "make it async, or leave the timeout out"
        )
    if policy.retry.deadline is not None:
        raise errors.InvalidOperation(
            f"operation {title!r} is a blocking function: nothing can stop it at its retries' deadline; "
            "make it async, or leave the deadline out"
        )
    if policy.effect is Effect.TRANSACTIONAL:
        raise errors.InvalidOperation(
            f"operation {title!r} is transactional and must be async: it shares the recording transaction"
        )


class Registry:
    """The operations that one agent has, by name."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self._operations: dict[str, Operation] = {}
        for one in operations:
            self.add(one)

    def add(self, one: Operation) -> None:
        """Add an operation. Raises `DuplicateOperation`, and `InvalidOperation` for what is not one."""
        if not isinstance(one, Operation):
            raise errors.InvalidOperation(
                f"{getattr(one, '__name__', one)!r} is not an operation: wrap it with @operation(policy=Policy(...)), "
                "which says what a second call would do"
            )
        if one.name in self._operations:
            raise errors.DuplicateOperation(f"two operations are named {one.name!r}; give one another name")
        self._operations[one.name] = one

    def get(self, name: str) -> Operation:
        """The operation of this name. Raises `UnknownOperation`, naming those there are."""
        try:
            return self._operations[name]
        except KeyError:
            known = ", ".join(sorted(self._operations)) or "none"
            raise errors.UnknownOperation(f"there is no operation {name!r}; there are: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._operations

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations.values())
