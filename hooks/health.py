"""How the hosts of a fleet are, as the page *Fleets* shows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from distributed_training.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distributed_training.fleet import Host
    from distributed_training.hooks.fleet import FleetHook
    from distributed_training.run.agents import HostAgent
    from distributed_training.run.preflight import Preflight

WELL = frozenset({"ok", "drained", "quarantined"})  # somebody knows of it already


async def health(hook: FleetHook) -> dict[str, Any]:
    """Look at all hosts of a fleet as a launch would; return what is known of each.

    :raises TrainingError: the connection cannot be right
    """
    preflight = await hook.examine()
    hosts = [_told(host, preflight, hook.quarantine) for host in hook.fleet.hosts]
    return {"conn_id": hook.fleet_conn_id, "hosts": hosts}


async def tidy(hook: FleetHook) -> dict[str, dict[str, Any]]:
    """Remove what ended jobs have left on the hosts; return what each removed, by name.

    Hosts that do not answer are left out.
    """
    done: dict[str, dict[str, Any]] = {}

    async def one(name: str, agent: HostAgent) -> None:
        try:
            done[name] = await agent.call(
                "gc", keep_days=None, max_bytes=hook.disk_cap, dry_run=False
            )
        except TrainingError as error:
            hook.log.warning("%s", error.message)

    async with hook.agents() as agents:
        await asyncio.gather(*(one(name, agent) for name, agent in agents.items()))
    return done


def unwell(fleet: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with hosts of a fleet, a line for each."""
    hosts = (host for host in fleet["hosts"] if host["state"] not in WELL)
    return [f"{host['name']}: {host['state']}: {host['reason']}" for host in hosts]


def _told(host: Host, preflight: Preflight, quarantine: float) -> dict[str, Any]:
    offer = preflight.offers.get(host.name)
    state, reason = _state(host.name, preflight, quarantine)
    told = {"name": host.name, "state": state, "reason": reason}
    if offer is None:
        return {**told, "slots": [], "columns": {}, "busy": {}}
    return {
        **told,
        "slots": [slot.name for slot in offer.slots()],
        "columns": preflight.cells(offer),
        "busy": {slot: _label(holder) for slot, holder in offer.busy.items()},
    }


def _state(name: str, preflight: Preflight, quarantine: float) -> tuple[str, str | None]:
    offer, failures = preflight.offers.get(name), preflight.failures(name)
    if offer is not None and (why := offer.withheld(quarantine)):
        return ("drained" if offer.drained else "quarantined"), why
    if not failures:
        return "ok", None
    unreachable = any(failure.check == "SSH" for failure in failures)
    why = "\n".join(str(failure).removeprefix(f"{name}: ") for failure in failures)
    return ("unreachable" if unreachable else "failed"), why


def _label(holder: Mapping[str, Any]) -> str:
    """Return who holds a slot: the task where Airflow started it, else the job."""
    label = holder.get("label") or {}
    if "dag" in label and "task" in label:
        return f"{label['dag']} · {label['task']}"
    return f"job {holder.get('job')} of user {holder.get('user')}"
