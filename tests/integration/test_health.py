"""What the page of the fleets is told of hosts."""

from __future__ import annotations

import asyncio

from distributed_training.hooks.fleet import FleetHook
from distributed_training.hooks.health import health, tidy, unwell


def test_hosts_that_are_well_drained_and_gone(jobs_on, make_fleet):
    fleet = make_fleet(3)
    jobs_on(fleet, slots=2)
    asyncio.run(drain("gpu2"))
    fleet["gpu3"].stop_sshd()
    told = asyncio.run(health(FleetHook()))
    states = {host["name"]: host["state"] for host in told["hosts"]}
    assert states == {"gpu1": "ok", "gpu2": "drained", "gpu3": "unreachable"}
    well, drained, gone = told["hosts"]
    assert (well["slots"], well["busy"], well["reason"]) == (["cpu-0", "cpu-1"], {}, None)
    assert well["columns"]["Python"]
    assert "new fans" in drained["reason"]
    assert (gone["slots"], gone["columns"]) == ([], {})
    (line,) = unwell(told)
    assert line.startswith("gpu3: unreachable: SSH")


def test_tidying_answers_for_each_host_that_can_be_reached(jobs_on, make_fleet):
    fleet = make_fleet(2)
    jobs_on(fleet)
    fleet["gpu2"].stop_sshd()
    done = asyncio.run(tidy(FleetHook()))
    assert {name: answer["removed"] for name, answer in done.items()} == {"gpu1": []}


async def drain(name: str) -> None:
    async with FleetHook().agents() as agents:
        await agents[name].call("mark", drained={"by": "ann", "reason": "new fans"})
