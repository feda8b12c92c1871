"""A process that has everything imported and forks a child for each order: four seconds of imports, once.

`python tests/crash/support/nursery.py DIRECTORY` reads orders as lines of JSON and prints, for each child that
has ended, `{"id", "signal"}`; what the child has to say lies in DIRECTORY/ID.json then. Invariant: the nursery
opens nothing and has one thread, so a child is like a fresh process; all children end with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a file: this folder gives way to the root that the imports start from
    sys.path[0] = str(Path(__file__).resolve().parents[3])

import openai.resources.chat.completions  # noqa: F401 - imported here, not in each child
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletionChunk
from pydantic import SecretStr

from standfast.graph import build_agent
from tests.crash.support.jobs import work

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.01


def main() -> None:
    directory = Path(sys.argv[1])
    _warm_up()
    children: dict[int, int] = {}
    unread = b""
    while True:
        if select.select([0], [], [], _POLL_SECONDS if children else None)[0]:
            piece = os.read(0, 65536)
            if not piece:
                break
            *lines, unread = (unread + piece).split(b"\n")
            for line in lines:
                order = json.loads(line)
                children[_fork(directory, order)] = order["id"]
        while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            told = {"id": children.pop(pid), "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}
            os.write(1, json.dumps(told).encode() + b"\n")
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _warm_up() -> None:
    """What every process does once, at its first call of a model; nothing is opened."""
    ChatOpenAI(model="none", api_key=SecretStr("none"))
    ChatCompletionChunk.model_rebuild(force=True)
    build_agent()


def _fork(directory: Path, order: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.close(0)
    try:
        said = {"value": work(order, directory)}
    except BaseException as error:  # the test that ordered it is told
        said = {"error": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
    path = directory / f"{order['id']}.json"
    path.with_suffix(".tmp").write_text(json.dumps(said, default=str))
    path.with_suffix(".tmp").rename(path)
    os._exit(0)


if __name__ == "__main__":
    main()
