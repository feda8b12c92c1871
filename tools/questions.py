"""Questions to people that are not approvals: `ask` from a node or an operation.

A question is an interrupt like every other: it holds nothing, and its answer is a row. Invariant: what `ask` returns
fits its schema; an answer that does not is never passed on, and the question is asked again with the reason.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, overload

from langgraph.types import interrupt
from pydantic import (
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)

from standfast.checkpoint import errors
from standfast.tools.ledger import refuse_to_wait

KEY: Final = "standfast.question"

T = TypeVar("T")


@overload
async def ask(question: str) -> Any: ...


@overload
async def ask(question: str, *, schema: type[T]) -> T: ...


@overload
async def ask(question: str, *, schema: Any) -> Any: ...


async def ask(question: str, *, schema: Any = None) -> Any:
    """Ask a person and return the answer. Nothing is held meanwhile.

    `schema`: a type that the answer must have, such as a pydantic model, a dataclass, `int`, `Literal["a", "b"]`;
    text such as "12" counts as a number where one is wanted. Without it any answer will do. What stands before it in
    a node runs again when the answer has come. Raises `InvalidRequest` for an empty question or an unusable schema,
    and `WaitRefused` in an operation that must not be called twice.
    """
    if not question.strip():
        raise errors.InvalidRequest("the question is empty; say what is asked")
    refuse_to_wait()
    adapter = None if schema is None else _adapter(schema)
    shape = None if adapter is None else adapter.json_schema()
    wrong: str | None = None
    while True:
        answer = interrupt({KEY: question, "question": question, "response_schema": shape, "wrong": wrong})
        if adapter is None:
            return answer
        try:
            return adapter.validate_python(answer)
        except ValidationError as error:
            wrong = said_of(error)


def said_of(error: ValidationError) -> str:
    """Why an answer does not fit, in one sentence for the person who gave it."""
    return "; ".join(
        f"{'.'.join(str(step) for step in one['loc'])}: {one['msg']}" if one["loc"] else one["msg"]
        for one in error.errors(include_url=False, include_context=False)
    )


def question_of(request: Any) -> str | None:
    """The question that an interrupt's value asks, if it is one of `ask`."""
    asked = request.get(KEY) if isinstance(request, dict) else None
    return asked if isinstance(asked, str) else None


def _adapter(schema: Any) -> TypeAdapter[Any]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(schema)
        adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError, TypeError) as error:
        raise errors.InvalidRequest(f"{schema!r} cannot be the schema of an answer: {error}") from error
    return adapter
