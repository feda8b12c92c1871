"""A short soak: what threads leave behind in workers, connections, tables and indexes. The long one: `make soak`."""

from __future__ import annotations

import pytest

from tests.crash.chaos.soak import STEADY, run


@pytest.mark.timeout(400)
@pytest.mark.guarantee("G13")
def test_memory_connections_tables_and_indexes_are_steady() -> None:
    soaked = run(seconds=40, seed=1)
    print(soaked.line())
    assert soaked.threads == soaked.done
    assert {} == {what: grown for what, grown in soaked.grown.items() if grown > STEADY[what]}
