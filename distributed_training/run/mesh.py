"""Connect every pair of hosts, all at once, before ranks try to."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from distributed_training.errors import HostUnreachable
from distributed_training.run.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from distributed_training.run.agents import HostAgent, Stream

_LIMIT = 60.0  # seconds for all: hosts knock for five of them
_DO = (
    "let the hosts reach each other on all TCP ports, or give the right address= in the fleet's "
    "host list"
)


async def mesh(
    agents: Mapping[str, HostAgent],
    addresses: Mapping[str, str],
    spare: Collection[str] = (),
) -> list[Finding]:
    """Let every host connect to every other one; return which pairs fail.

    :param agents: by name of the host
    :param addresses: where other hosts reach each one
    :param spare: hosts that nobody needs to knock at
    :raises TrainingError: a host cannot be asked
    """
    names = list(agents)
    together = asyncio.Barrier(len(names))
    ports: dict[str, int] = {}
    faults: dict[tuple[str, str], str] = {}

    async def probe(name: str) -> None:
        try:
            async with agents[name].stream("mesh") as stream:
                ports[name] = stream.answer["port"]
                await together.wait()
                peers = [peer for peer in names if peer != name and peer not in spare]
                answers = await _knock(stream, {p: (addresses[p], ports[p]) for p in peers})
                faults.update({(name, peer): why for peer, why in answers.items() if why})
                await together.wait()
        except BaseException:
            await together.abort()
            raise

    try:
        async with asyncio.timeout(_LIMIT):
            results = await asyncio.gather(*map(probe, names), return_exceptions=True)
    except TimeoutError:
        raise HostUnreachable(
            f"the hosts did not say within {_LIMIT:g} s whether they reach each other; "
            "look at their load"
        ) from None
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.BrokenBarrierError):
            raise result
    return list(_findings(faults, names, addresses))


async def _knock(stream: Stream, peers: dict[str, tuple[str, int]]) -> dict[str, str | None]:
    await stream.say(json.dumps(list(peers.values())))
    answers: list[str | None] = json.loads(await stream.line() or b"[]")
    return dict(zip(peers, answers, strict=True))


def _findings(
    faults: Mapping[tuple[str, str], str], names: Collection[str], addresses: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield a finding for each pair, or one for a host that is cut off from all others."""
    told: set[tuple[str, str]] = set()
    for name in names if len(names) > 2 else ():
        inward = {pair for pair in faults if pair[1] == name}
        outward = {pair for pair in faults if pair[0] == name}
        if len(inward) == len(names) - 1:
            told |= inward
            why = f"no other host reaches it at {addresses[name]}: {faults[min(inward)]}"
            yield Finding(name, "network", "failure", why, _DO)
        if len(outward) == len(names) - 1:
            told |= outward
            why = f"it reaches no other host: {faults[min(outward)]}"
            yield Finding(name, "network", "failure", why, _DO)
    for pair in sorted(faults.keys() - told):
        name, peer = pair
        why = f"it cannot reach {peer} at {addresses[peer]}: {faults[pair]}"
        yield Finding(name, "network", "failure", why, _DO)
