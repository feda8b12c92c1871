"""The HTTP side of a test server: sockets on 127.0.0.1, a thread per connection, scripted breakages.

Invariant: whatever hangs or waits ends when the server stops, and `stop` leaves no thread and no open socket.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Generic, Self
from urllib.parse import parse_qsl, urlsplit

from tests.servers.scripted import Log, Request, Rule, S, Script, Step, read_log

LOGGED_HEADERS = (
    "accept",
    "content-type",
    "idempotency-key",
    "traceparent",
    "user-agent",
    "webhook-id",
    "x-stainless-retry-count",
)
EVENT_STREAM = "text/event-stream"
PROXY_PAGE = b"<html><head><title>Bad gateway</title></head><body>Try again later.</body></html>"


@dataclass(frozen=True)
class Answer:
    """A response, its body in pieces; each piece of an event stream is one event."""

    status: int
    pieces: Sequence[bytes]
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, status: int, value: object, **headers: str) -> Self:
        body = json.dumps(value).encode()
        middle = len(body) // 2
        return cls(status, (body[:middle], body[middle:]), headers=headers)

    @classmethod
    def error(cls, status: int, message: str, code: str, **headers: str) -> Self:
        value = {"error": {"message": message, "type": "scripted", "param": None, "code": code}}
        return cls.json(status, value, **headers)

    @property
    def streams(self) -> bool:
        return self.content_type == EVENT_STREAM

    def broken_json(self, after: int) -> Answer:
        if self.streams:
            return replace(self, pieces=(*self.pieces[:after], b'data: {"id": "broken", "choi\n\n'))
        return replace(self, pieces=(b'{"id": "broken", "choi',))


class Server(ABC, Generic[S]):
    """A scripted server; subclasses say what a request means.

    Started by `with`, or run as its own process by `serve`. `POST /script` takes a JSON array of steps and
    appends them, `DELETE /script` drops those left; neither is logged. What goes wrong inside the server
    itself (a scripted function that raises, say) answers 500 and is raised by `stop`.
    """

    step_type: type[S]

    def __init__(self, log: Path, *, port: int = 0) -> None:
        self.log = Log(log)
        self.rules: Script[S] = Script()
        self.stopping = threading.Event()
        self.faults: list[Exception] = []
        self._listener = _Listener(self, port)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,), name=type(self).__name__)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    def script(self, *rules: Rule[S]) -> None:
        """Append rules for the requests to come; a function is asked once, in its turn."""
        self.rules.add(*rules)

    def always(self, rule: Rule[S]) -> None:
        """Append a rule that is never used up."""
        self.rules.add_for_ever(rule)

    def requests(self) -> list[dict[str, Any]]:
        """The log's lines about requests."""
        return read_log(self.log.path, "request")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End every connection and thread, then raise what had gone wrong inside the server, if anything."""
        self.stopping.set()
        self._listener.shutdown()
        self._listener.close()
        self._thread.join()
        self.log.close()
        if self.faults:
            raise ExceptionGroup(f"{type(self).__name__} failed by itself", self.faults)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def refuse(self, request: Request) -> Answer | None:
        """The refusal of a request that is wrong as it stands, before the script is asked."""

    @abstractmethod
    def answer(self, request: Request, step: S | None, *, perform: bool) -> Answer:
        """Carry the request out and answer it; without `perform`, only make an answer of the right shape."""

    def text(self, request: Request) -> str:
        """What a step's `when` is looked for in."""
        return request.text


class _Listener(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = False  # so that server_close joins them
    request_queue_size = 128

    def __init__(self, owner: Server[Any], port: int) -> None:
        self.owner = owner
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def close(self) -> None:
        """Wake every thread that reads from its connection, and wait for the threads."""
        with self._lock:
            for connection in self._open:
                _hang_up(connection)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        # Not the inherited one: its FIN would go out before the RST of a connection that is to be reset.
        with self._lock:
            self._open.discard(request)
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, ConnectionError):
            self.owner.faults.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr: the log file says it."""

    def _handle(self) -> None:
        owner = self.server.owner
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = int(headers.get("content-length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the client went away in mid-request: there was no request
            self.close_connection = True
            return
        request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
        if request.path == "/script":
            self._send(_script(owner, request))
            return
        refusal = owner.refuse(request)
        try:
            step = None if refusal else owner.rules.take(request, owner.text(request))
        except Exception as error:
            owner.faults.append(error)
            step, refusal = None, Answer.error(500, f"the script's function raised {error!r}", "fault")
        owner.log.append("request", **_record(request, step, refusal))
        if refusal:
            self._send(refusal)
        else:
            self._follow(request, step)

    def _follow(self, request: Request, step: Any) -> None:
        owner = self.server.owner
        plan: Step = step or Step()
        if owner.stopping.wait(plan.delay_effect):
            self.close_connection = True
            return
        answer = owner.answer(request, step, perform=plan.succeeds or plan.performed)
        if owner.stopping.wait(plan.delay_answer):
            self.close_connection = True
            return
        match plan.fail:
            case None if plan.status is not None:
                self._send(_scripted_error(plan.status, plan.retry_after))
            case None:
                self._send(answer, plan.pace)
            case "truncated":
                self._send(replace(answer, pieces=answer.pieces[: plan.after]), plan.pace)
            case "malformed_json":
                self._send(answer.broken_json(plan.after), plan.pace)
            case "wrong_content_type":
                self._send(Answer(200, (PROXY_PAGE,), "text/html"))
            case "empty_body":
                self._send(Answer(200, ()))
            case "hang" | "reset" | "cut":
                self._break(answer, plan)

    def _break(self, answer: Answer, plan: Step) -> None:
        self.close_connection = True
        if plan.after:
            self._send_head(answer)
            self._send_pieces(answer, answer.pieces[: plan.after], plan.pace)
        if plan.fail == "hang":
            self.server.owner.stopping.wait()
        elif plan.fail == "reset":
            # Lingering for no time turns the close into a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _send(self, answer: Answer, pace: float = 0.0) -> None:
        self._send_head(answer)
        self._send_pieces(answer, answer.pieces, pace)
        if answer.streams:
            self.wfile.write(b"0\r\n\r\n")

    def _send_head(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        if answer.streams:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(sum(map(len, answer.pieces))))
        for name, value in answer.headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _send_pieces(self, answer: Answer, pieces: Sequence[bytes], pace: float) -> None:
        for index, piece in enumerate(pieces):
            if index:
                self.server.owner.stopping.wait(pace)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.streams else piece)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was first


def _scripted_error(status: int, retry_after: float | str | None) -> Answer:
    headers = {} if retry_after is None else {"Retry_After": f"{retry_after}"}
    return Answer.error(status, f"scripted: {status}", f"scripted_{status}", **headers)


def _script(owner: Server[Any], request: Request) -> Answer:
    if request.method == "DELETE":
        owner.rules.clear()
    elif request.method == "POST":
        try:
            owner.script(*parse_script(owner.step_type, request.json))
        except ValueError as error:
            return Answer.error(400, str(error), "bad_script")
    return Answer.json(200, {"remaining": owner.rules.remaining()})


def parse_script(step_type: type[S], value: object) -> list[S]:
    """Steps from a JSON array; ValueError names the first that is none."""
    if not isinstance(value, list):
        raise ValueError(f"a script is an array of steps, not {value!r}")
    return [step_type.parse(step) for step in value]


def _record(request: Request, step: Step | None, refusal: Answer | None) -> dict[str, Any]:
    try:
        body = request.json
    except ValueError:
        body = request.text
    headers = {name: value for name in LOGGED_HEADERS if (value := request.headers.get(name)) is not None}
    headers["authorization"] = "present" if "authorization" in request.headers else "absent"
    return {
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "headers": headers,
        "body": body,
        "step": None if step is None else step.summary(),
        "refused": None if refusal is None else refusal.status,
    }


def arguments(description: str) -> argparse.ArgumentParser:
    """The command line that every server has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", type=Path, required=True, help="JSON lines, appended")
    parser.add_argument("--script", type=Path, help="a JSON array of steps to begin with")
    parser.add_argument("--while-stdin", action="store_true", help="stop when standard input ends")
    return parser


def serve(server: Server[Any], options: argparse.Namespace) -> None:
    """Run a server as this process until SIGTERM or SIGINT: its URL is the first line of standard output."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the threads, which inherit it
    if options.script:
        server.script(*parse_script(server.step_type, json.loads(options.script.read_text())))
    if options.while_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    with server:
        print(server.url, flush=True)
        signal.sigwait(ends)


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
