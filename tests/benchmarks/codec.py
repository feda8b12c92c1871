"""The codec beside LangGraph's own serializer: microseconds to encode and decode, and the ratio of the two.

Run with `python tests/benchmarks/codec.py`. The stock serializer turns tuples and integer keys into something
else, so those two rows compare exact work with inexact work.
"""

from __future__ import annotations

import timeit
import uuid
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from standfast.checkpoint.codec import Codec


def messages(count: int) -> list[Any]:
    call: Any = {"name": "search", "args": {"query": "x"}, "id": "c1"}
    usage: Any = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
    return [
        HumanMessage(f"hello {i} " * 20, id=str(i))
        if i % 2 == 0
        else AIMessage(f"hello {i} " * 20, id=str(i), tool_calls=[call], usage_metadata=usage)
        for i in range(count)
    ]


CASES: dict[str, Any] = {
    "small dict": {"a": 1, "b": "text", "c": [1, 2, 3], "d": None, "e": 1.5},
    "20 messages": messages(20),
    "1000 lists": [[i % 100, str(i), {"k": True}] for i in range(1000)],
    "1000 lists, ints to 999": [[i, str(i), {"k": i}] for i in range(1000)],
    "1000 floats": [i / 7 for i in range(1000)],
    "100 uuids": [uuid.UUID(int=i) for i in range(100)],
    "100 tuples": [(i, str(i)) for i in range(100)],
    "100 integer keys": {i: str(i) for i in range(100)},
    "text of 200 kB": "\u00e9" * 100_000,
}


def microseconds(work: Callable[[], Any]) -> float:
    timer = timeit.Timer(work)
    rounds, _ = timer.autorange()
    return min(timer.repeat(5, max(1, rounds // 5))) / max(1, rounds // 5) * 1e6


def main() -> None:
    codec, stock = Codec(), JsonPlusSerializer(allowed_msgpack_modules=None)
    print(f"{'':24} {'encode':>8} {'stock':>8} {'decode':>8} {'stock':>8} {'ours/stock':>10}")
    for name, value in CASES.items():
        ours, theirs = codec.encode(value), stock.dumps_typed(value)
        times = [
            microseconds(lambda value=value: codec.encode(value)),
            microseconds(lambda value=value: stock.dumps_typed(value)),
            microseconds(lambda ours=ours: codec.decode(ours)),
            microseconds(lambda theirs=theirs: stock.loads_typed(theirs)),
        ]
        ratio = (times[0] + times[2]) / (times[1] + times[3])
        print(f"{name:24} " + " ".join(f"{time:8.1f}" for time in times) + f" {ratio:10.2f}")


if __name__ == "__main__":
    main()
