"""What a task hands on when its job has ended: a result, outputs, logs, or the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import ObjectStoragePath

from distributed_training.agent.agent import hider
from distributed_training.errors import TrainingError
from distributed_training.run import collect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from structlog.typing import FilteringBoundLogger as Logger

    from distributed_training.run.agents import HostAgent
    from distributed_training.run.job import JobRef
    from distributed_training.run.watch import Outcome


@dataclass(frozen=True, slots=True)
class Delivery:
    """Brings what is asked for from the hosts of one job.

    :param agents: by name of the host
    :param outputs: paths on the head, which go to ``output_dir``
    :param log_dir: where whole logs go, whether the job succeeded or not
    :param secrets: what is masked in them
    """

    agents: Mapping[str, HostAgent]
    outputs: Sequence[str]
    output_dir: str | None
    log_dir: str | None
    log: Logger
    secrets: Sequence[str] = ()

    async def of(self, outcome: Outcome) -> dict[str, Any]:
        """Return what the task returns.

        :raises TrainingError: the verdict, if the job failed; its words are logged last
        """
        ref = outcome.ref
        await self._bring_logs(ref)
        if outcome.error:
            for line in outcome.error.message.splitlines():
                self.log.error("%s", line)
            raise outcome.error
        left = await collect.result(ref, self.agents)
        return {
            "job_id": ref.job_id,
            "state": "success",
            "hosts": [node.host.name for node in ref.nodes],
            "world_size": ref.world_size,
            "duration": round(outcome.ended - ref.started, 3),
            "restarts": ref.history.restarts,
            "metrics": dict(left.metrics),
            "outputs": await self._bring_outputs(ref),
            "log_dir": at_home(self.log_dir) if self.log_dir else None,
            "result": left.result,
        }

    async def _bring_logs(self, ref: JobRef) -> None:
        """Bring whole logs; that they cannot be brought does not decide over the task."""
        if not self.log_dir:
            return
        try:
            into = ObjectStoragePath(at_home(self.log_dir))
            await collect.logs(ref, self.agents, into, hider(self.secrets))
        except TrainingError as error:
            self.log.warning("Not all logs could be brought to %s: %s", self.log_dir, error)

    async def _bring_outputs(self, ref: JobRef) -> dict[str, str]:
        if not self.outputs or self.output_dir is None:
            return {}
        into = ObjectStoragePath(at_home(self.output_dir))
        return await collect.outputs(ref, self.agents, self.outputs, into)


def at_home(path: str) -> str:
    """Return a path with a leading ``~`` as the home of who runs the task; URLs stay."""
    return str(Path(path).expanduser()) if path.startswith("~") else path
