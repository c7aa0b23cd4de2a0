"""What can go wrong with a job, one class for each cause that a user would treat differently."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class TrainingError(Exception):
    """Base of all errors: a message for people, and the fields that a program needs.

    A message says what failed, where, why, and what to do about it.

    :param message: the whole story in words
    :param host: name of the host it happened on, as the fleet spells it
    :param rank: global rank it happened in
    :param exit_code: exit status of that rank, if it exited
    :param signal: name of the signal that ended that rank (``SIGKILL``), if one did
    :param log_tail: last lines of that rank's log, oldest first
    """

    classes: ClassVar[dict[str, type[TrainingError]]] = {}

    def __init_subclass__(cls) -> None:
        TrainingError.classes[cls.__name__] = cls

    def __init__(
        self,
        message: str,
        *,
        host: str | None = None,
        rank: int | None = None,
        exit_code: int | None = None,
        signal: str | None = None,
        log_tail: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.host = host
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal
        self.log_tail = tuple(log_tail)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields: Airflow hands exceptions between processes."""
        return TrainingError.from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON values; :meth:`from_dict` turns it back."""
        return {
            "class": type(self).__name__,
            "message": self.message,
            "host": self.host,
            "rank": self.rank,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "log_tail": list(self.log_tail),
        }

    @staticmethod
    def from_dict(record: dict[str, Any]) -> TrainingError:
        """Rebuild an error of the class that it was."""
        fields = dict(record)
        kind = TrainingError.classes.get(fields.pop("class"), TrainingError)
        fields["log_tail"] = tuple(fields["log_tail"])
        return kind(**fields)

    @classmethod
    def together(cls, errors: list[TrainingError]) -> Self:
        """Return one error that tells every one of ``errors``."""
        if len(errors) == 1 and isinstance(errors[0], cls):
            return errors[0]
        return cls("\n".join(error.message for error in errors), host=errors[0].host)


class PlanError(TrainingError):
    """Raised when what was asked for cannot be right, before any host is touched or changed."""


class HostUnreachable(TrainingError):
    """Raised when a host cannot be connected to, or does not let us in."""


class ConnectionLost(HostUnreachable):
    """Raised when a connection that worked breaks; the job behind it may well go on."""


class JobTakenOver(TrainingError):
    """Raised when another watcher has taken a job over from the one that asks."""


class AgentError(TrainingError):
    """Raised when a host answers with something that no other class describes."""


class PreflightFailed(TrainingError):
    """Raised when a host is not fit to run the job: nothing was started anywhere."""


class SlotsBusy(TrainingError):
    """Raised when a slot or a port that the job needs is held by another job."""


class HostWithheld(TrainingError):
    """Raised when hosts that the job needs are drained by hand, or quarantined after a fault."""


class StartFailed(TrainingError):
    """Raised when a program could not be executed on a host; nothing was left running."""


class RankFailed(TrainingError):
    """Raised when a rank failed by itself: the first one, not those that it pulled down."""


class GroupNotFormed(RankFailed):
    """Raised when a rank ended well, but by itself: it never joined a group of all ranks."""


class OutOfMemory(RankFailed):
    """Raised when the kernel killed a rank because memory ran out."""


class GpuFault(RankFailed):
    """Raised when a rank failed and its GPU reported an error that points to the hardware."""


class PortTaken(RankFailed):
    """Raised when somebody took the ranks' port after it had been found free."""


class NodeLost(TrainingError):
    """Raised when a host of the job died or stayed out of reach."""


class OutputMissing(TrainingError):
    """Raised when a job ended well but an output that it should have left is not there."""


class DeliveryFailed(TrainingError):
    """Raised when what a job left cannot be brought or handed on; a retry does not train anew."""


class InterconnectNotUsed(TrainingError):
    """Raised when InfiniBand was asked for, and ranks of different hosts talked over sockets."""


class JobStalled(TrainingError):
    """Raised when no rank has printed a line or noted a metric for ``hang_timeout``."""


class JobTimeout(TrainingError):
    """Raised when the task's ``execution_timeout`` ended the job."""


class JobCancelled(TrainingError):
    """Raised when a user stopped the job, or nobody watched it for ``orphan_timeout``."""
