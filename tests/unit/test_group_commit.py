"""Units that come together are committed together, and a group that fails is nobody's fault."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from standfast.checkpoint.group_commit import GroupCommit


class Disk:
    """Where units are committed, with a gate before it and units that it does not take."""

    def __init__(self, *, bad: Sequence[int] = ()) -> None:
        self.bad = set(bad)
        self.alone: list[int] = []
        self.groups: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.commits = GroupCommit(self._alone, self._together)

    async def _alone(self, unit: int) -> None:
        await asyncio.sleep(0)
        await self.gate.wait()
        if unit in self.bad:
            raise ValueError(unit)
        self.alone.append(unit)

    async def _together(self, units: Sequence[int]) -> None:
        await self.gate.wait()
        if self.bad & set(units):
            raise ValueError(units)
        self.groups.append(list(units))

    @property
    def committed(self) -> list[int]:
        return sorted([*self.alone, *(unit for group in self.groups for unit in group)])


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_alone_goes_alone_and_at_once() -> None:
    disk = Disk()

    for unit in range(3):
        await disk.commits.commit(unit)

    assert [0, 1, 2] == disk.alone
    assert [] == disk.groups


async def test_what_comes_while_another_is_under_way_goes_together() -> None:
    disk = Disk()

    await asyncio.gather(*(disk.commits.commit(unit) for unit in range(6)))

    assert [0] == disk.alone
    assert [[1, 2, 3, 4, 5]] == disk.groups


async def test_a_second_one_that_nobody_joins_goes_alone() -> None:
    disk = Disk()

    await asyncio.gather(*(disk.commits.commit(unit) for unit in range(2)))

    assert [0, 1] == disk.alone
    assert [] == disk.groups


async def test_a_group_is_bounded() -> None:
    disk = Disk()

    await asyncio.gather(*(disk.commits.commit(unit) for unit in range(40)))

    assert list(range(40)) == disk.committed
    assert [16, 16, 7] == [len(group) for group in disk.groups]


async def test_in_a_group_that_fails_each_meets_its_own_end() -> None:
    disk = Disk(bad=[3])

    ended = await asyncio.gather(*(disk.commits.commit(unit) for unit in range(6)), return_exceptions=True)

    assert [None, None, None, None] == [*ended[:3], *ended[5:]]
    assert isinstance(ended[3], ValueError)
    assert [0, 1, 2, 4, 5] == disk.committed


async def test_one_that_is_cancelled_before_its_group_is_sent_is_not_committed() -> None:
    disk = Disk()
    disk.gate.clear()
    tasks = [asyncio.create_task(disk.commits.commit(unit)) for unit in range(5)]
    await asyncio.sleep(0)

    tasks[2].cancel()
    await turns()
    disk.gate.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(ended[2], asyncio.CancelledError)
    assert [0, 1, 3, 4] == disk.committed


async def test_one_that_is_cancelled_while_its_group_is_sent_is_not_committed_behind_its_back() -> None:
    disk = Disk()
    disk.gate.clear()
    tasks = [asyncio.create_task(disk.commits.commit(unit)) for unit in range(5)]
    await turns()

    tasks[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[2]
    disk.gate.set()
    await asyncio.gather(*tasks[:2], *tasks[3:])

    assert [0, 1, 3, 4] == disk.committed
    assert [] == disk.groups


async def test_when_all_of_a_group_are_cancelled_nothing_of_it_is_committed() -> None:
    disk = Disk()
    disk.gate.clear()
    tasks = [asyncio.create_task(disk.commits.commit(unit)) for unit in range(5)]
    await turns()

    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    disk.gate.set()
    await turns()

    assert 5 == sum(isinstance(one, asyncio.CancelledError) for one in ended)
    assert [] == disk.committed
    await disk.commits.commit(9)
    assert [9] == disk.alone


async def test_a_group_that_is_cancelled_before_it_has_begun_to_be_sent_leaves_nobody_waiting() -> None:
    disk = Disk()
    tasks = [asyncio.create_task(disk.commits.commit(unit)) for unit in range(10)]
    asyncio.get_running_loop().call_soon(tasks[5].cancel)  # in the turn in which the group becomes full
    tasks += [asyncio.create_task(disk.commits.commit(unit)) for unit in range(10, 18)]

    async with asyncio.timeout(10):
        ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(ended[5], asyncio.CancelledError)
    assert [unit for unit in range(18) if unit != 5] == disk.committed


async def test_the_clean_up_of_a_group_is_not_cut_by_the_next_one_that_is_cancelled() -> None:
    begun, cleaned, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def together(_: Sequence[int]) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await go_on.wait()
            cleaned.set()

    commits = GroupCommit(Disk()._alone, together)
    tasks = [asyncio.create_task(commits.commit(unit)) for unit in range(5)]
    await begun.wait()
    tasks[2].cancel()
    await turns()
    tasks[3].cancel()
    await turns()
    assert not tasks[3].done()

    go_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert cleaned.is_set()
