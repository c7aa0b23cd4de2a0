"""Look at all hosts on a schedule, and remove what ended jobs have left on them.

A DAG to copy. The page *Fleets* shows what it finds: hosts and their slots, and what is wrong with
which. Its task fails if a host is not well and nobody has drained it, so that Airflow's own
notifications tell of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

log = logging.getLogger(__name__)

PARAMS = {
    "fleets": Param(
        ["gpu_fleet_default"], type="array", items={"type": "string"}, title="Fleets: connections"
    ),
    "tidy": Param(True, type="boolean", title="Remove what ended jobs have left"),
}


@dag(
    schedule="*/15 * * * *",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,  # it goes to all hosts: a person decides when
    params=PARAMS,
    tags=["training", "fleet"],
    doc_md=__doc__,
)
def fleet_health() -> None:
    """Look at the hosts of all fleets."""
    look()


@task
def look() -> None:
    """Record how all hosts are; then fail if some are not well."""
    from distributed_training.hooks.health import unwell

    context = get_current_context()
    params = context["params"]
    found = asyncio.run(look_at(params["fleets"], params["tidy"]))
    record = {"v": 1, "checked": time.time(), "fleets": found}
    context["ti"].xcom_push(key="fleet_health", value=record)
    wrong = [line for fleet in found for line in [*unwell(fleet), fleet.get("reason")] if line]
    if wrong:
        raise AirflowFailException("\n".join(wrong))


async def look_at(conn_ids: list[str], tidy_up: bool) -> list[dict[str, Any]]:
    """Return what is known of fleets; one that cannot be read has the reason, and no hosts."""
    from distributed_training.errors import TrainingError
    from distributed_training.hooks.fleet import FleetHook
    from distributed_training.hooks.health import health, tidy

    found = []
    for conn_id in conn_ids:
        try:
            hook = await FleetHook.load(conn_id)
            found.append(await health(hook))
            for host, done in (await tidy(hook) if tidy_up else {}).items():
                log.info("%s: removed %d (%d bytes)", host, len(done["removed"]), done["bytes"])
        except TrainingError as error:
            found.append({"conn_id": conn_id, "hosts": [], "reason": error.message})
    return found


fleet_health()
