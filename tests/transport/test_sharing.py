"""Connections that several jobs share: one for all, and no job disturbs another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from distributed_training.errors import ConnectionLost
from tests.ways import hook_of, logins

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fleet import Fleet


def test_jobs_share_one_connection_to_a_host(fleet: Fleet) -> None:
    """B10."""
    hook = hook_of(fleet.connection())
    before = logins(fleet["gpu1"]), logins(fleet["gpu2"])

    async def job() -> None:
        async with hook.connections(hook.fleet.hosts) as ways:
            assert list(ways) == ["gpu1", "gpu2"]
            await asyncio.gather(*(way.run("sleep 0.2") for way in ways.values()))

    async def main() -> None:
        await asyncio.gather(job(), job(), job())

    asyncio.run(main())
    assert (logins(fleet["gpu1"]), logins(fleet["gpu2"])) == (before[0] + 1, before[1] + 1)


def test_other_connections_are_not_shared(fleet: Fleet) -> None:
    """Another user, key or setting is another way."""
    hooks = [hook_of(fleet.connection()), hook_of(fleet.connection(compress=False))]
    before = logins(fleet["gpu1"])

    async def main() -> None:
        host = hooks[0].fleet.hosts[0]
        async with hooks[0].connections([host]) as first, hooks[1].connections([host]) as second:
            await first["gpu1"].run("true")
            await second["gpu1"].run("true")

    asyncio.run(main())
    assert logins(fleet["gpu1"]) == before + 2


def test_a_job_that_ends_or_turns_away_disturbs_no_other(fleet: Fleet) -> None:
    hook = hook_of(fleet.connection())
    host = hook.fleet.hosts[0]
    before = logins(fleet["gpu1"])

    async def main() -> None:
        async with hook.connections([host]) as staying:
            channel = await staying["gpu1"].open("cat")
            async with hook.connections([host]) as leaving:
                await leaving["gpu1"].run("true")
            async with hook.connections([host]) as doubting:
                await doubting["gpu1"].run("true")
                assert logins(fleet["gpu1"]) == before + 1
                await doubting["gpu1"].close()
                assert (await doubting["gpu1"].run("echo new")).stdout == b"new\n"
                assert logins(fleet["gpu1"]) == before + 2
            await channel.write(b"still here\n")
            assert await channel.read() == b"still here\n"

    asyncio.run(main())


def test_all_replace_a_broken_connection_by_one(make_fleet: Callable[[int], Fleet]) -> None:
    fleet = make_fleet(1)
    hook = hook_of(fleet.connection())

    async def job() -> None:
        async with hook.connections(hook.fleet.hosts) as ways:
            channel = await ways["gpu1"].open("echo on; cat")
            assert await channel.read() == b"on\n"
            started.release()
            with pytest.raises(ConnectionLost):
                await channel.read()
            await ways["gpu1"].close()
            assert (await ways["gpu1"].run("echo again")).stdout == b"again\n"

    started = asyncio.Semaphore(0)

    async def main() -> None:
        jobs = asyncio.gather(*(job() for _ in range(5)))
        for _ in range(5):
            await started.acquire()
        await asyncio.to_thread(fleet["gpu1"].drop_connections)
        await jobs

    asyncio.run(main())
    assert logins(fleet["gpu1"]) == 2
