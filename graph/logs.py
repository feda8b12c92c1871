"""Log lines of a worker, as text or as JSON, with the thread and the run that they are about."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal

about: Final[ContextVar[dict[str, str]]] = ContextVar("standfast_log_about")


class _About(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.about = about.get({})
        return True


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        ids = "".join(f" {key}={value}" for key, value in record.about.items())  # type: ignore[attr-defined]
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return f"{moment} {record.levelname.lower()} {record.name}{ids} {self._message(record)}"

    def _message(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **record.about,  # type: ignore[attr-defined]
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(form: Literal["text", "json"], *, level: int = logging.INFO) -> None:
    """Send the logs of this process to stderr, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    handler.addFilter(_About())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)
