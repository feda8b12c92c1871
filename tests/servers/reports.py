"""A reports API: the receiver of an effect that can be counted, with and without idempotency keys.

`python tests/servers/reports.py --port 0 --log FILE` prints its URL.

POST /reports        a JSON body; 201 and the report, {"id", "idempotency_key", "created_at", "body"}
GET /reports         {"reports": [...]}, oldest first; `?idempotency_key=KEY` only those made under the key
GET /reports/ID      one report, or 404

With `Idempotency-Key`, the same key and body give the first answer again (200, `Idempotent-Replayed: true`)
and the same key with another body is refused; bodies are compared as JSON values. Every report is a log
line of the kind `effect`, on the disk before it is answered; a server that starts on an old log knows its
reports and keys.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal, get_args

if __name__ == "__main__":  # run as a file: this folder gives way to the root that the imports start from
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.servers.scripted import Request, Step, read_log
from tests.servers.wire import Answer, Server, arguments, serve

Mode = Literal["deduplicates", "requires_key", "ignores_key"]
"""What the key does: `deduplicates` accepts requests without one too, `requires_key` refuses those with 400,
`ignores_key` makes a report of every request."""


class ReportsServer(Server[Step]):
    """Reports in memory and in the log. `conflict` is the status for a key used again with another body.

    A step's `when` is looked for in a POST's body, or in a GET's path.
    """

    step_type = Step

    def __init__(
        self, log: Path, *, port: int = 0, mode: Mode = "deduplicates", conflict: Literal[409, 422] = 422
    ) -> None:
        super().__init__(log, port=port)
        self._mode = mode
        self._conflict = conflict
        self._lock = threading.Lock()
        self._reports: list[dict[str, Any]] = [entry["report"] for entry in self.effects()]

    def effects(self) -> list[dict[str, Any]]:
        """The log's lines about effects, one per report made: its `report`."""
        return read_log(self.log.path, "effect")

    def text(self, request: Request) -> str:
        return request.text if request.method == "POST" else request.path

    def refuse(self, request: Request) -> Answer | None:
        match request.method, request.path.split("/"):
            case "GET", ["", "reports"] | ["", "reports", _]:
                return None
            case "POST", ["", "reports"]:
                return self._refuse_report(request)
        return Answer.error(404, f"no such page: {request.method} {request.path}", "not_found")

    def _refuse_report(self, request: Request) -> Answer | None:
        if self._mode == "requires_key" and not request.headers.get("idempotency-key"):
            return Answer.error(400, "send an Idempotency-Key", "idempotency_key_missing")
        try:
            request.json  # noqa: B018 - is it JSON?
        except ValueError:
            return Answer.error(400, "the body is not JSON", "invalid_request")
        return None

    def answer(self, request: Request, step: Step | None, *, perform: bool) -> Answer:
        if request.method == "POST":
            return self._post(request, perform)
        _, _, *wanted = request.path.split("/")
        key = request.query.get("idempotency_key")
        with self._lock:
            found = [r for r in self._reports if key is None or r["idempotency_key"] == key]
        if not wanted:
            return Answer.json(200, {"reports": found})
        for report in found:
            if report["id"] == wanted[0]:
                return Answer.json(200, report)
        return Answer.error(404, f"no report {wanted[0]!r}", "not_found")

    def _post(self, request: Request, perform: bool) -> Answer:
        key = None if self._mode == "ignores_key" else request.headers.get("idempotency-key")
        with self._lock:
            first = next((r for r in self._reports if key and r["idempotency_key"] == key), None)
            if first is None:
                return Answer.json(201, self._make(request, perform))
        if first["body"] != request.json:
            return Answer.error(self._conflict, f"key {key!r} had another body", "idempotency_key_reused")
        return Answer.json(200, first, Idempotent_Replayed="true")

    def _make(self, request: Request, perform: bool) -> dict[str, Any]:
        report = {
            "id": f"report-{len(self._reports) + 1}",
            "idempotency_key": request.headers.get("idempotency-key"),
            "created_at": time.time(),
            "body": request.json,
        }
        if perform:
            self.log.append("effect", report=report)
            self._reports.append(report)
        return report


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--mode", choices=get_args(Mode), default="deduplicates")
    parser.add_argument("--conflict", type=int, choices=(409, 422), default=422)
    options = parser.parse_args()
    server = ReportsServer(options.log, port=options.port, mode=options.mode, conflict=options.conflict)
    serve(server, options)


if __name__ == "__main__":
    main()
