"""Ways to a test host, over each SSH library, through a connection as Airflow would hold it."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection

from distributed_training.hooks.fleet import FleetHook
from distributed_training.hooks.login import settings_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from distributed_training.transport.base import Transport
    from tests.fleet.host import Host

LIBRARIES = ("paramiko", "asyncssh")


def hook_of(connection: dict[str, Any]) -> FleetHook:
    """Return a hook that has its connection."""
    extra = connection.get("extra", {})
    held = Connection(conn_id="gpus", **{**connection, "extra": json.dumps(extra)})
    hook = FleetHook("gpus")
    hook.settings = settings_of(held, extra)
    return hook


@asynccontextmanager
async def way(
    library: str, connection: dict[str, Any], name: str | None = None
) -> AsyncIterator[Transport]:
    """Yield the way to one host of a connection, by default the first."""
    hook = hook_of(connection)
    host = hook.fleet.select(name).hosts[0]
    if library == "paramiko":
        transport = hook.transport(host)
    else:
        transport = await hook.async_transport(host)
    assert library in type(transport).__name__.lower()
    try:
        yield transport
    finally:
        await transport.close()


def logins(host: Host) -> int:
    """Return how many connections a host has let in so far."""
    return len(re.findall("Accepted (publickey|password)", host.log.read_text(errors="replace")))
