"""What a task hands on when its job has ended: a result, outputs, logs, or the verdict."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from airflow.sdk import ObjectStoragePath

from distributed_training.agent.host.masking import hider
from distributed_training.errors import DeliveryFailed, PlanError
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
        outputs = await self._bring_outputs(ref)
        left = await collect.result(ref, self.agents)
        for note in left.notes:
            self.log.warning("%s", note)
        return {
            "job_id": ref.job_id,
            "state": "success",
            "hosts": [node.host.name for node in ref.nodes],
            "world_size": ref.world_size,
            "duration": round(outcome.ended - ref.started, 3),
            "restarts": ref.history.restarts,
            "metrics": dict(left.metrics),
            "outputs": outputs,
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
        except Exception as error:  # an object store raises what its library likes
            why = collect.reason(error)
            self.log.warning("Not all logs could be brought to log_dir=%s: %s", self.log_dir, why)

    async def _bring_outputs(self, ref: JobRef) -> dict[str, str]:
        if not self.outputs or self.output_dir is None:
            return {}
        try:
            into = destination(self.output_dir)
        except PlanError as error:
            again = "once it can, a retry brings them without training anew"
            raise DeliveryFailed(f"the job ended well, but {error.message}; {again}") from error
        return await collect.outputs(ref, self.agents, self.outputs, into)


def at_home(path: str) -> str:
    """Return a path with a leading ``~`` as the home of who runs the task; URLs stay."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


def destination(output_dir: str) -> ObjectStoragePath:
    """Return where outputs go, once it is known that they may; a local folder is made.

    :raises PlanError: they cannot go there
    """
    try:
        into = ObjectStoragePath(at_home(output_dir))
        assert into.fs  # its library is there
        if into.protocol in ("", "file"):
            into.mkdir(parents=True, exist_ok=True)
            if not os.access(into.path, os.W_OK | os.X_OK):
                raise PermissionError("this worker may not write there")
    except Exception as error:  # an object store raises what its library likes
        raise PlanError(
            f"output_dir={output_dir!r} cannot take outputs: {collect.reason(error)}; name a "
            "folder that can be written on the worker, or the URL of an object store whose "
            "library and connection the worker has"
        ) from error
    return into


def output_paths(outputs: object) -> tuple[str, ...]:
    """Return the paths to bring back; a text is one path.

    :raises PlanError: one of them cannot be right
    """
    paths = (outputs,) if isinstance(outputs, str) else () if outputs is None else outputs
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise PlanError(f"outputs={outputs!r} is neither a path nor a list of paths")
    for path in paths:
        if fault := _fault(PurePosixPath(path)):
            raise PlanError(f"outputs={outputs!r}: {path!r} {fault}")
    return tuple(paths)


def _fault(path: PurePosixPath) -> str | None:
    """Return why a path cannot be an output."""
    if "\0" in str(path):
        return "holds a NUL, which no path can"
    if ".." in path.parts:
        return "leads out of the working directory; write it as an absolute path"
    if path.is_absolute() and not any(part.strip("*/") for part in path.parts):
        return "is the whole host; name a file or a folder"
    if not str(path).strip(". "):
        return "is the working directory itself, or nothing; name a file or a folder in it"
    return None
