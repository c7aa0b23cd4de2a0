"""What the web page is shown of a task that has no job to be watched: it waits, or has failed."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from distributed_training.run.picture import KEY, VERSION, Picture, state_of, verdict_of
from distributed_training.run.preflight import Preflight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from distributed_training.errors import TrainingError
    from distributed_training.plan import JobSpec, Offer, Plan
    from distributed_training.run.job import JobRef

PLAN_KEY = "training_plan"  # of the XCom that tells once what an attempt was to be
ENVIRONMENTS = 32 << 10  # characters of all ranks' environments together
HIDDEN = "***"


class Showing:
    """The page of a task instance, as a worker fills it.

    :param ti: Airflow's
    :param warn: told if the page takes nothing
    """

    def __init__(self, ti: Any, warn: Callable[[str], object]) -> None:
        self._ti = ti
        self._warn = warn

    def planned(self, plan: Plan, offers: Sequence[Offer], ref: JobRef) -> None:
        """Show a plan, and its ranks, which wait for all hosts to be ready."""
        self._push(PLAN_KEY, plan_record(plan, offers))
        self._push(KEY, Picture(ref).first())

    def waiting(self, spec: JobSpec, why: str) -> None:
        """Show that a job waits for slots, and for whom."""
        self._push(KEY, _told(spec, "waiting", message=why, since=spec.since))

    def failed(self, spec: JobSpec, error: TrainingError) -> None:
        """Show why a job has not come to run."""
        told = {"ended": time.time(), "verdict": verdict_of(error)}
        self._push(KEY, _told(spec, state_of(error), **told))

    def _push(self, key: str, record: Mapping[str, Any]) -> None:
        try:
            self._ti.xcom_push(key, record)
        except Exception as error:  # whatever ails a page, it is not the job's affair
            told = f"{type(error).__name__}: {error}"
            self._warn(f"The task's page is not told of it: {told}")


def plan_record(plan: Plan, offers: Sequence[Offer]) -> dict[str, Any]:
    """Return what is shown of a plan, as JSON values; what is secret is hidden."""
    by_name = {offer.host.name: offer for offer in offers}
    preflight = Preflight.of(by_name[node.host.name] for node in plan.nodes)
    return {
        "v": VERSION,
        "attempt": plan.attempt,
        "launcher": plan.spec.launcher,
        "lines": list(plan.describe()),
        "preflight": [
            {"host": name, "columns": preflight.cells(offer)}
            for name, offer in preflight.offers.items()
        ],
        "preflight_notes": [f"{each.severity}: {each}" for each in preflight.findings],
        "environment": dict(_environments(plan)),
    }


def _environments(plan: Plan) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the environment of each rank, of as many as there is room for."""
    room = ENVIRONMENTS
    for process in (process for node in plan.nodes for process in node.processes):
        variables = {**process.defaults, **process.env}
        hidden = {name: _masked(variables[name], plan.spec.secrets) for name in sorted(variables)}
        room -= len(json.dumps(hidden))
        if room < 0:
            return
        yield str(process.name if process.rank is None else process.rank), hidden


def _masked(value: str, secrets: Collection[str]) -> str:
    """Return a value without secrets, the longest of them first: one may be part of another."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        value = value.replace(secret, HIDDEN)
    return value


def _told(spec: JobSpec, state: str, **more: Any) -> dict[str, Any]:
    return {"v": VERSION, "job_id": spec.job_id, "state": state, "updated": time.time(), **more}
