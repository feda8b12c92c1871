"""What differs between two mappings of JSON values, by path: for people who must see what was changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_LONGEST: Final = 200
_MISSING: Final = object()


@dataclass(frozen=True)
class Change:
    """One place that differs; None stands for a value that is not there, too."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The places that differ, in the order of the keys; lists are compared as wholes, 1 is not true."""
    return list(_walk("", before, after))


def _walk(path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for key in dict.fromkeys([*before, *after]):
        place = f"{path}.{key}" if path else str(key)
        old, new = before.get(key, _MISSING), after.get(key, _MISSING)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _walk(place, old, new)
        elif old is _MISSING or new is _MISSING or _text(old) != _text(new):
            yield Change(place, None if old is _MISSING else old, None if new is _MISSING else new)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
