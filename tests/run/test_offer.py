"""What hosts offer, and what is said if some do not answer."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from distributed_training.errors import HostUnreachable
from distributed_training.fleet import Host
from distributed_training.run.agents import HostAgent
from distributed_training.run.offer import offers
from distributed_training.transport.local import LocalTransport


class Dead(LocalTransport):
    """The way to a host that is not there."""

    async def open(self, command: str) -> NoReturn:
        """Fail."""
        raise HostUnreachable(f"cannot reach {self.host.name}", host=self.host.name)


def test_a_dead_host_is_told_with_the_way_to_go_on_without_it() -> None:
    ways = [LocalTransport(Host("gpu1")), Dead(Host("gpu2")), LocalTransport(Host("gpu3"))]
    with pytest.raises(HostUnreachable) as caught:
        asyncio.run(offers([HostAgent(way) for way in ways]))
    assert caught.value.host == "gpu2"
    assert caught.value.message.splitlines() == [
        "cannot reach gpu2",
        "To go on without, select the others: hosts='gpu1@gpu3'",
    ]


def test_without_any_host_there_is_no_way_to_go_on() -> None:
    with pytest.raises(HostUnreachable, match=r"cannot reach gpu2$"):
        asyncio.run(offers([HostAgent(Dead(Host("gpu2")))]))


def test_a_dead_host_is_told_and_left_out_where_the_others_are_enough() -> None:
    told: list[str] = []
    ways = [Dead(Host("gpu1")), LocalTransport(Host("gpu2"))]
    found = asyncio.run(offers([HostAgent(way) for way in ways], needed=1, log=told.append))
    assert [offer.host.name for offer in found] == ["gpu2"]
    assert told == ["WARNING: not asked for any rank: cannot reach gpu1"]
