"""Operations: functions that an agent may call, each with the policy that it obeys; and their registry.

Invariant: an operation's policy is frozen at its declaration. What is not a plain read must say what happens
when it is called twice; nothing with an effect runs under a policy that nobody wrote.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, overload

import anyio.to_thread
from langchain_core.tools import BaseTool
from langchain_core.tools.base import create_schema_from_function
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.store.base import BaseStore
from pydantic import BaseModel, ValidationError

from standfast.checkpoint import errors
from standfast.checkpoint.documents import Documents
from standfast.checkpoint.threads import Run
from standfast.tools.artifacts import ThreadArtifacts
from standfast.tools.failures import InvalidArguments
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

    @property
    def time_left(self) -> float | None:
        """Seconds until this attempt is cut off, by its time-out, its deadline or the run's; None if by none."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())

    @property
    def thread_id(self) -> str:
        return self.run.thread_id


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
        unknown = set(arguments) - set(self.schema.model_fields)
        if unknown:
            raise InvalidArguments(
                f"{self.name} has no argument {', '.join(sorted(map(repr, unknown)))}; "
                f"it takes {', '.join(self.schema.model_fields)}"
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
) -> Operation: ...


@overload
def operation(
    *,
    policy: Policy,
    name: str | None = None,
    description: str | None = None,
    checks: Sequence[Check] = (),
    version: str = "1",
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
) -> Operation | Callable[[Callable[..., Any] | BaseTool], Operation]:
    """Make an operation of a function or of any LangChain tool, as a decorator or by a call.

    A parameter named `context` receives the `OperationContext`; all others are the model's to fill. Raises
    `InvalidOperation` for a declaration that cannot keep its promise.
    """
    if target is None:
        return lambda given: operation(
            given, policy=policy, name=name, description=description, checks=checks, version=version
        )
    if isinstance(target, BaseTool):
        return _of_tool(target, policy, name, description, tuple(checks), version)
    return _of_function(target, policy, name, description, tuple(checks), version)


def _of_function(
    function: Callable[..., Any],
    policy: Policy,
    name: str | None,
    description: str | None,
    checks: tuple[Check, ...],
    version: str,
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
        return await anyio.to_thread.run_sync(lambda: function(**given))

    return Operation(title, text, policy, schema, call, checks, version)


def _of_tool(
    tool: BaseTool,
    policy: Policy,
    name: str | None,
    description: str | None,
    checks: tuple[Check, ...],
    version: str,
) -> Operation:
    title = name or tool.name
    if getattr(tool, "coroutine", True) is None:
        _refuse_blocking(title, policy)
    schema = _pydantic(tool.get_input_schema())

    async def call(arguments: Mapping[str, Any], context: OperationContext) -> Any:
        return await tool.ainvoke(dict(arguments))

    return Operation(title, description or tool.description, policy, schema, call, checks, version)


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
