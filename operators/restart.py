"""Whether the ranks of a job that failed are started once more within the same try."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed_training.errors import GpuFault, NodeLost, RankFailed, TrainingError
from distributed_training.run.verdict import is_port_taken

if TYPE_CHECKING:
    from distributed_training.run.job import History


@dataclass(frozen=True, slots=True)
class Budget:
    """How often the ranks may be started again, by the cause of their end.

    :param lost_hosts: after a host or a GPU was lost (``max_restarts``)
    :param errors: after a rank failed (``max_error_restarts``)
    :param ports: after somebody was faster at the port that we had chosen
    """

    lost_hosts: int = 0
    errors: int = 0
    ports: int = 0

    def after(self, error: TrainingError | None, history: History) -> History | None:
        """Return the history with one more restart, or None if the failure is final."""
        cause = _cause(error)
        if cause is None or getattr(history, cause) >= getattr(self, cause):
            return None
        return dataclasses.replace(history, **{cause: getattr(history, cause) + 1})


def _cause(error: TrainingError | None) -> str | None:
    """Return the field of a budget that pays for a restart after this failure."""
    if isinstance(error, NodeLost | GpuFault):
        return "lost_hosts"
    if not isinstance(error, RankFailed):
        return None
    return "ports" if is_port_taken(error) else "errors"
