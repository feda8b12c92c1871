"""A process that dies while an artifact's bytes are on their way outside Postgres leaves nothing that nobody finds."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import Artifact, Runtime, build_agent
from tests.conftest import Clock
from tests.crash.support.processes import Nursery

pytest.importorskip("fsspec")


@pytest.mark.parametrize("again", [True, False])
def test_bytes_that_never_arrived_are_put_by_the_next_or_swept(
    nursery: Nursery,
    database_url: str,
    clock: Clock,
    query: Callable[..., list[tuple[Any, ...]]],
    tmp_path: Path,
    again: bool,
) -> None:
    place = (tmp_path / "artifacts").as_uri()
    order = {"url": database_url, "scripted": True, "text": "a text", "env": {"STANDFAST_ARTIFACTS_URL": place}}
    killed = nursery.run("keep", **order, kill=["artifact.placing", 1])
    [(sha256, stored)] = query("select sha256, stored from artifacts")
    assert (signal.SIGKILL, False) == (killed.signal, stored)
    artifact = Artifact(str(sha256), "kept", "text/plain; charset=utf-8", 6)

    with Runtime(build_agent(), database_url=database_url, settings=Settings(artifacts_url=place)) as runtime:
        with pytest.raises(errors.UnknownArtifact):
            runtime.read_artifact(artifact)
        if again:
            assert sha256 == nursery.run("keep", **order).value["did"]
            assert b"a text" == runtime.read_artifact(artifact)
        clock.move(timedelta(days=2))
        assert 1 == runtime.sweep_artifacts()
    assert [] == query("select sha256 from artifacts")
    assert [] == [path for path in (tmp_path / "artifacts").glob("**/*") if path.is_file()]
