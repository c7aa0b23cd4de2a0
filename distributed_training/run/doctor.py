"""Look at hosts as a launch would, without a job."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from distributed_training.errors import HostUnreachable, PlanError, TrainingError
from distributed_training.placing import place
from distributed_training.plan import JobSpec, Program
from distributed_training.run.finding import Finding
from distributed_training.run.mesh import mesh
from distributed_training.run.offer import offer
from distributed_training.run.preflight import Preflight, of_offer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from distributed_training.plan import Offer
    from distributed_training.run.agents import HostAgent


async def doctor(
    agents: Mapping[str, HostAgent], python: str | None = None, quarantine: float = 0.0
) -> Preflight:
    """Return what is known of hosts, and all that is wrong.

    :param agents: by name of the host
    :param python: interpreter whose packages are compared
    :param quarantine: seconds for which a fault of a host's own counts
    """
    found = Preflight()
    versions: dict[str, Mapping[str, str]] = {}

    async def look(name: str) -> None:
        try:
            offered = await offer(agents[name])
            told = await agents[name].call("examine", python=python)
        except TrainingError as error:
            check = "SSH" if isinstance(error, HostUnreachable) else "agent"
            found.findings.append(Finding(name, check, "failure", error.message))
            return
        found.offers[name], versions[name] = offered, told["versions"]
        found.findings += [*of_offer(offered), *_of_place(offered, quarantine)]
        found.findings += [
            Finding(name, each["what"], "failure", each["why"], each["do"])
            for each in told["problems"]
        ]

    await asyncio.gather(*map(look, agents))
    found.offers = {name: found.offers[name] for name in agents if name in found.offers}
    found.add_versions({name: versions[name] for name in found.offers})
    await _meet(found, agents)
    return found


def _of_place(offer: Offer, quarantine: float) -> Iterator[Finding]:
    """Yield what keeps ranks from a host though nothing is wrong with it."""
    name = offer.host.name
    if why := offer.withheld(quarantine):
        do = f"`python -m distributed_training undrain {name}` gives it back"
        yield Finding(name, "use", "warning", f"it is {why}", do)
    try:
        place(JobSpec("doctor", Program("command", ())), [_given_back(offer)])
    except PlanError as error:
        yield Finding(name, "plan", "failure", error.message.removeprefix(f"{name}: "))


def _given_back(offer: Offer) -> Offer:
    return dataclasses.replace(offer, drained=None, fault=None)


async def _meet(found: Preflight, agents: Mapping[str, HostAgent]) -> None:
    """Connect every pair of hosts that have answered and have an address."""
    refused = {each.host for each in found.findings if each.check == "plan"}
    names = [name for name in found.offers if name not in refused]
    if len(names) < 2:
        return
    addresses = {name: found.offers[name].address for name in names}
    try:
        found.findings += await mesh({name: agents[name] for name in names}, addresses)
    except TrainingError as error:
        found.findings.append(Finding(error.host or names[0], "network", "failure", error.message))
