"""One command on a channel: what goes in, what comes out, how it ended."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import HostUnreachable
from distributed_training.fleet import Host
from distributed_training.transport.base import Exit
from distributed_training.transport.local import LocalTransport
from tests.ways import LIBRARIES, way

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from distributed_training.transport.base import Channel, Completed, Transport
    from tests.fleet import Fleet

    Connect = Callable[[], AbstractAsyncContextManager[Transport]]

MEBIBYTE = 1024 * 1024


@pytest.fixture(params=["local", *LIBRARIES])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Every way to run a command."""
    if request.param == "local":
        return local
    fleet: Fleet = request.getfixturevalue("fleet")
    return lambda: way(request.param, fleet.connection())


@asynccontextmanager
async def local() -> AsyncIterator[Transport]:
    transport = LocalTransport(Host("here"))
    yield transport
    await transport.close()


def run(connect: Connect, command: str, **options: Any) -> Completed:
    async def main() -> Completed:
        async with connect() as transport:
            return await transport.run(command, **options)

    return asyncio.run(main())


def on_channel(connect: Connect, command: str, use: Callable[[Channel], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connect() as transport:
            channel = await transport.open(command)
            await use(channel)
            await channel.close()

    asyncio.run(main())


async def stream(number: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield b"x" * size


def test_stdin_arrives_whole(connect: Connect) -> None:
    data = bytes(range(256)) * (8 * MEBIBYTE // 256)
    assert run(connect, "cat", stdin=data).stdout == data


def test_stdin_may_be_a_stream(connect: Connect) -> None:
    done = run(connect, "wc -c", stdin=stream(50, 99_999))
    assert int(done.stdout) == 50 * 99_999


def test_no_stdin_is_the_end_of_file(connect: Connect) -> None:
    """B28."""
    assert run(connect, "wc -c").stdout.strip() == b"0"


def test_both_outputs_pass_without_deadlock(connect: Connect) -> None:
    """B04: 8 MiB to each, at once."""
    size = 8 * MEBIBYTE
    done = run(connect, f"head -c {size} /dev/zero & head -c {size} /dev/zero >&2; wait; echo end")
    assert len(done.stdout) == size + len("end\n")
    assert done.exit == Exit(0, None, "\0" * 16 * 1024)


def test_stderr_first_blocks_nothing(connect: Connect) -> None:
    """B04."""
    done = run(connect, f"head -c {8 * MEBIBYTE} /dev/zero >&2; echo after")
    assert done.stdout == b"after\n"


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("echo no such file >&2; exit 7", Exit(7, None, "no such file\n")),
        ("kill -SEGV $$", Exit(None, "SIGSEGV", "")),
        ("kill -KILL $$", Exit(None, "SIGKILL", "")),
    ],
)
def test_the_end_is_a_status_or_a_signal(connect: Connect, command: str, ended: Exit) -> None:
    assert run(connect, command).exit == ended


def test_a_command_need_not_read_its_stdin(connect: Connect) -> None:
    done = run(connect, "exec 0<&-; echo done", stdin=b"x" * 10 * MEBIBYTE)
    assert (done.stdout, done.exit.status) == (b"done\n", 0)


def test_the_start_of_a_character_may_end_stderr(connect: Connect) -> None:
    assert run(connect, r"printf 'caf\303' >&2").exit.stderr == "caf\N{REPLACEMENT CHARACTER}"


def test_a_failing_source_of_stdin_ends_the_run(connect: Connect) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"x"
        raise ValueError("the disk is gone")

    with pytest.raises(ValueError, match="the disk is gone"):
        run(connect, "cat", stdin=failing())


def test_a_run_that_takes_too_long_names_the_host(connect: Connect) -> None:
    with pytest.raises(HostUnreachable, match=r"(here|gpu1) did not answer within 0.5 s"):
        run(connect, "read line", stdin=never(), timeout=0.5)


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def test_output_comes_while_the_command_runs(connect: Connect) -> None:
    async def converse(channel: Channel) -> None:
        for word in (b"one\n", b"two\n"):
            await channel.write(word)
            assert await channel.read() == word
        await channel.write_eof()
        assert await channel.read() == b""
        assert (await channel.wait()).status == 0

    on_channel(connect, "cat", converse)


def test_closing_a_channel_waits_for_nobody(connect: Connect, tmp_path: Path) -> None:
    """B28: and what was started lives on, with the end of file on its stdin."""

    async def leave(channel: Channel) -> None:
        assert await channel.read() == b"on\n"
        await channel.close()

    mark = f"/tmp/{tmp_path.name}"
    on_channel(connect, f"(while read line; do :; done; echo done > {mark}) & echo on; wait", leave)
    done = run(connect, f"until cat {mark}; do sleep 0.05; done 2>/dev/null; rm {mark}")
    assert done.stdout == b"done\n"


def test_an_unread_stream_holds_up_no_other(connect: Connect) -> None:
    """One connection, and a command that writes what nobody reads yet."""

    async def main() -> None:
        async with connect() as transport:
            busy = await transport.open(f"head -c {16 * MEBIBYTE} /dev/zero")
            assert (await transport.run("echo free")).stdout == b"free\n"
            size = 0
            while data := await busy.read():
                size += len(data)
            assert size == 16 * MEBIBYTE
            await busy.close()

    asyncio.run(main())
