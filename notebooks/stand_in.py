"""What the notebooks need of the outside world, without a network: a database, a model that says what it is told,
and a bank."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult


def own_database() -> None:
    """Let the embedded server of this process, and reports, live in a new folder that goes when the kernel does."""
    if "STANDFAST_DATA_DIR" not in os.environ and "STANDFAST_DATABASE_URL" not in os.environ:
        folder = tempfile.mkdtemp(prefix="standfast-")
        os.chmod(folder, 0o755)  # noqa: S103 - if root runs this, the server's own account must get in
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["STANDFAST_DATA_DIR"] = folder
        os.environ["STANDFAST_REPORTS_DIR"] = f"{folder}/reports"


class StandIn(BaseChatModel):
    """Stands in for a language model: calls the tools in `calls`, all at once, then says `answer`."""

    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    answer: str = "Done."

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        last = max(at for at, one in enumerate(messages) if isinstance(one, HumanMessage))
        calls = [{"name": name, "args": args, "id": f"call-{at}"} for at, (name, args) in enumerate(self.calls)]
        first = not any(isinstance(one, AIMessage) for one in messages[last:])
        said = AIMessage("", tool_calls=calls) if first and calls else AIMessage(self.answer)
        return ChatResult(generations=[ChatGeneration(message=said)])


class Bank:
    """A bank on this machine that takes refunds by HTTP. `faults` are what becomes of the next requests.

    "unavailable": refused with 503, nothing is done. "mute": done, but the answer is an error. With `knows_keys` a
    request whose Idempotency-Key was seen before is answered as then, and nothing is done.
    """

    def __init__(self, *, knows_keys: bool = True) -> None:
        self.knows_keys = knows_keys
        self.faults: list[str] = []
        self.refunds: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        bank = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                key = self.headers["Idempotency-Key"]
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fault = bank.faults.pop(0) if bank.faults else ""
                if fault == "unavailable":
                    return self._answer(503, {"error": "try again"})
                if not (bank.knows_keys and key in [one["key"] for one in bank.refunds]):
                    bank.refunds.append({"key": key, **asked})
                if fault == "mute":
                    return self._answer(503, {"error": "something broke after it was done"})
                return self._answer(200, {"refunded": asked["amount"]})

            def do_GET(self) -> None:
                known = any(one["key"] == self.path.strip("/") for one in bank.refunds)
                self._answer(200, {"known": known})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                told = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler
