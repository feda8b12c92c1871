"""What the test servers have in common: steps that say how a request ends, and the log of what came.

Invariant: a log line is on the disk before a byte of the answer that it belongs to is sent, so that a count
taken from the log holds whichever side is killed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from email.utils import formatdate
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, get_args

Failure = Literal["hang", "reset", "cut", "truncated", "malformed_json", "wrong_content_type", "empty_body"]
"""How an answer breaks on its way.

hang                silence; the connection stays open until the server stops
reset               the connection is reset (RST)
cut                 the connection is closed (FIN) before the answer's end
truncated           the answer ends too early, but properly as far as HTTP can tell
malformed_json      status 200, and JSON that breaks off
wrong_content_type  status 200 and a page of HTML, as a proxy sends it
empty_body          status 200 and nothing
"""


@dataclass(frozen=True)
class Request:
    """One HTTP request; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def json(self) -> Any:
        """The body's value; ValueError if it is not JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Step:
    """How one request ends; with no argument: well.

    which request  the one whose `method` is this and in whose text (each server says what that is) `when`
                   occurs, if no earlier step fits; used up after `times` requests, None: never
    its times      it takes effect `delay_effect` s after its arrival and is answered `delay_answer` s
                   later, with `pace` s between the answer's pieces; a client that has gone away by then
                   changes nothing
    a refusal      `status`, 400 to 599, with `retry_after` in seconds or as an HTTP date
    a breakage     `fail`, once `after` pieces are sent (a stream's events; the two halves of any other
                   body); with hang, reset and cut, 0 means: not even the status line
    its effect     a request that fails had none, unless `performed`: then the effect stands, and only its
                   answer is lost or an error
    """

    when: str = ""
    method: Literal["GET", "POST"] = "POST"
    times: int | None = 1
    delay_effect: float = 0.0
    delay_answer: float = 0.0
    pace: float = 0.0
    status: int | None = None
    retry_after: float | str | None = None
    fail: Failure | None = None
    after: int = 0
    performed: bool = False

    def __post_init__(self) -> None:
        if self.method not in ("GET", "POST"):
            raise ValueError(f"method is {self.method!r}; use GET or POST")
        if self.times is not None and self.times < 1:
            raise ValueError(f"times is {self.times!r}; use 1 or more, or None for every request")
        if min(self.delay_effect, self.delay_answer, self.pace, self.after) < 0:
            raise ValueError("a delay, a pace or a number of pieces is negative")
        if self.status is not None and not 400 <= self.status <= 599:
            raise ValueError(f"status is {self.status!r}; a scripted status is an error, 400 to 599")
        if self.fail is not None and self.fail not in get_args(Failure):
            raise ValueError(f"fail is {self.fail!r}; use one of {', '.join(get_args(Failure))}")
        if self.status is not None and self.fail is not None:
            raise ValueError(f"status {self.status} and fail {self.fail!r} exclude each other")
        if self.retry_after is not None and self.status is None:
            raise ValueError("retry_after is sent with an error only; set status")
        if self.performed and self.succeeds:
            raise ValueError("performed is about a request that fails; set status or fail")

    @property
    def succeeds(self) -> bool:
        return self.status is None and self.fail is None

    @classmethod
    def parse(cls, value: object) -> Self:
        """A step from its JSON object (its arguments by name); ValueError if it is none."""
        if not isinstance(value, dict):
            raise ValueError(f"a step is an object, not {value!r}")
        if unknown := value.keys() - {field.name for field in fields(cls)}:
            raise ValueError(f"a step has no {', '.join(sorted(unknown))}")
        try:
            return cls(**value)
        except TypeError as error:
            raise ValueError(f"{value!r} is not a step: {error}") from error

    def summary(self) -> dict[str, Any]:
        """What differs from a step without arguments: the step as the log shows it."""
        return {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default and field.name not in ("when", "times")
        }


def http_date(seconds: float) -> str:
    """The HTTP date (RFC 9110, 5.6.7) `seconds` from now; its resolution is a second."""
    return formatdate(time.time() + seconds, usegmt=True)


S = TypeVar("S", bound=Step)
Rule: TypeAlias = S | Callable[[Request], S]
"""A step, or a function that makes one from a request (a POST)."""


class Script(Generic[S]):
    """Rules in order, shared by the threads of a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[tuple[Rule[S], int | None]] = []

    def add(self, *rules: Rule[S]) -> None:
        """Append rules; a function counts once."""
        with self._lock:
            self._rules += [(rule, rule.times if isinstance(rule, Step) else 1) for rule in rules]

    def add_for_ever(self, rule: Rule[S]) -> None:
        with self._lock:
            self._rules.append((rule, None))

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def remaining(self) -> int:
        """How many requests are still spoken for; rules without an end do not count."""
        with self._lock:
            return sum(times or 0 for _, times in self._rules)

    def take(self, request: Request, text: str) -> S | None:
        """Use up the first rule that fits the request, or None if none does."""
        rule = self._pop(request.method, text)
        return rule if rule is None or isinstance(rule, Step) else rule(request)

    def _pop(self, method: str, text: str) -> Rule[S] | None:
        with self._lock:
            for index, (rule, times) in enumerate(self._rules):
                wanted, when = (rule.method, rule.when) if isinstance(rule, Step) else ("POST", "")
                if wanted != method or when not in text:
                    continue
                if times == 1:
                    del self._rules[index]
                elif times is not None:
                    self._rules[index] = (rule, times - 1)
                return rule
        return None


class Log:
    """A file of JSON lines, each on the disk before `append` returns; opened again, it goes on at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, kind: str, **data: Any) -> None:
        line = json.dumps({"kind": kind, "time": time.time(), **data}, ensure_ascii=False) + "\n"
        with self._lock:
            os.write(self._file, line.encode())
            os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_log(path: Path, kind: str) -> list[dict[str, Any]]:
    """The log's lines of one kind, oldest first; a last line that is not complete is left out."""
    *lines, _unfinished = path.read_text().split("\n")
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]
