"""Long-term memory: LangGraph's store, over the runtime's pool, with every value sealed.

Invariants: a value comes back as it was, of registered types only, or is refused before it is stored. Namespaces and
keys stand in clear, because they are searched; so a filter is applied here, to opened values. Memory belongs to no
thread and is fenced by no lease: a put is whole or not there, and the last one counts.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp
from langgraph.store.memory import _compare_values
from langgraph.store.postgres.aio import AsyncPostgresStore

from standfast.checkpoint import errors
from standfast.checkpoint.database import Database
from standfast.checkpoint.seal import Sealer

_SEALED: Final = "sealed"
_PAGE: Final = 200  # rows that are opened at a time to apply a filter


class Memory(BaseStore):
    """LangGraph's `BaseStore`, for any thread of any graph: `runtime.store` in a node, `runtime.memory` outside.

    The methods without `a` are for other threads than the event loop's, such as those of blocking nodes. Raises
    `UnstorableValue`, and `UsageError` for a search by meaning and for a time to live, which it does not have.
    """

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer
        self._opened: tuple[asyncio.AbstractEventLoop, _Rows] | None = None

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        given = list(ops)
        sent = [self._sealed(one) for one in given]
        rows = self._rows()
        found = await self._database.again(lambda: rows.abatch(sent))
        return [await self._result(one, result) for one, result in zip(given, found, strict=True)]

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        loop = self._database.loop
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            raise errors.WrongLoop("a blocking call of memory inside the event loop would hang; use its async twin")
        return asyncio.run_coroutine_threadsafe(self.abatch(ops), loop).result()

    def _rows(self) -> _Rows:
        loop = asyncio.get_running_loop()
        if self._opened is None or self._opened[0] is not loop:
            self._opened = loop, _Rows(self._database.pool)
        return self._opened[1]

    def _sealed(self, op: Op) -> Op:
        if isinstance(op, PutOp):
            if op.ttl is not None:
                raise errors.UsageError("this memory has no time to live; delete what is not wanted any more")
            if op.value is None:
                return op
            where = f"memory {'/'.join(op.namespace)}[{op.key!r}]"
            sealed = self._sealer.seal(dict(op.value), at=_at(op.namespace, op.key), where=where)
            return op._replace(value={_SEALED: base64.b85encode(sealed).decode()}, index=False)
        if isinstance(op, SearchOp):
            if op.query is not None:
                raise errors.UsageError("this memory is searched by namespace and filter, not by meaning")
            if op.filter:
                return op._replace(filter=None, limit=_PAGE, offset=0)
        return op

    async def _result(self, op: Op, result: Result) -> Result:
        if isinstance(op, GetOp):
            assert result is None or isinstance(result, Item)
            return None if result is None else self._item(result)
        if not isinstance(op, SearchOp):
            return result
        page: list[Any] = list(result) if isinstance(result, list) else []
        if not op.filter:
            return [self._search_item(one) for one in page]
        matching: list[SearchItem] = []
        rows, offset = self._rows(), 0
        while True:
            matching += _matching([self._search_item(one) for one in page], op.filter)
            if len(page) < _PAGE or len(matching) >= op.offset + op.limit:
                return matching[op.offset : op.offset + op.limit]
            offset += _PAGE
            following = op._replace(filter=None, limit=_PAGE, offset=offset)
            ((*page,),) = await self._database.again(lambda search=following: rows.abatch([search]))  # type: ignore[misc]

    def _item(self, item: Item) -> Item:
        return Item(
            value=self._open(item),
            key=item.key,
            namespace=item.namespace,
            created_at=item.created_at,
            updated_at=item.updated_at,
        )

    def _search_item(self, item: SearchItem) -> SearchItem:
        return SearchItem(item.namespace, item.key, self._open(item), item.created_at, item.updated_at)

    def _open(self, item: Item) -> dict[str, Any]:
        where = f"memory {'/'.join(item.namespace)}[{item.key!r}]"
        if item.value.keys() != {_SEALED}:
            raise errors.UnknownStoredType(
                f"{where} was stored by another program, in clear; it was left as it is", type_name="json", path=where
            )
        sealed = base64.b85decode(item.value[_SEALED])
        return self._sealer.unseal(sealed, at=_at(item.namespace, item.key), where=where)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Learned:
    """One thing that memory holds about an owner."""

    key: str
    text: str


def preferences_of(owner: str) -> tuple[str, ...]:
    """The namespace of what an owner prefers. A label may hold no period, so periods are written as %2E."""
    return ("preferences", owner.replace("%", "%25").replace(".", "%2E"))


async def read_preferences(memory: BaseStore, owner: str, *, limit: int = 50) -> list[Learned]:
    """What is remembered of an owner's preferences, at most `limit`, oldest first."""
    found = await memory.asearch(preferences_of(owner), limit=limit)
    ordered = sorted(found, key=lambda one: (one.created_at, one.key))
    return [Learned(one.key, str(one.value.get("text", ""))) for one in ordered if one.value.get("text")]


class _Rows(AsyncPostgresStore):
    """LangGraph's statements. Its task that gathers calls is not wanted: calls come here as batches."""

    def _ensure_task(self) -> None:
        pass


def _matching(items: Iterable[SearchItem], wanted: Mapping[str, Any]) -> Iterator[SearchItem]:
    for one in items:
        if all(_compare_values(one.value.get(key), value) for key, value in wanted.items()):
            yield one


def _at(namespace: tuple[str, ...], key: str) -> tuple[str, ...]:
    return ("store", ".".join(namespace), key, "value")
