"""A ready-made retry policy: machines fail and recover, a bug fails every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from distributed_training.errors import (
    DeliveryFailed,
    GpuFault,
    GroupNotFormed,
    HostUnreachable,
    HostWithheld,
    InterconnectNotUsed,
    JobCancelled,
    JobTimeout,
    NodeLost,
    OutOfMemory,
    OutputMissing,
    PlanError,
    PortTaken,
    RankFailed,
    SlotsBusy,
    StartFailed,
)

if TYPE_CHECKING:
    from datetime import timedelta


def retry_policy(
    delay: timedelta | None = None, busy_delay: timedelta | None = None
) -> ExceptionRetryPolicy:
    """Return a policy for ``retry_policy=`` of an operator; ``retries=`` still bounds the tries.

    Errors that no rule names are retried as tasks without a policy are.

    :param delay: until a try after a fault of a machine (``retry_delay`` of the task)
    :param busy_delay: until a try after slots were busy (``delay``)
    """
    again, never = RetryAction.RETRY, RetryAction.FAIL
    return ExceptionRetryPolicy(
        [
            RetryRule([NodeLost, HostUnreachable, HostWithheld], again, delay, "a host was lost"),
            RetryRule(GpuFault, again, delay, "a GPU failed"),
            RetryRule(PortTaken, again, delay, "a port was taken"),
            RetryRule(SlotsBusy, again, busy_delay or delay, "slots were busy"),
            RetryRule(JobCancelled, again, delay, "the job was ended from outside"),
            RetryRule(DeliveryFailed, again, delay, "only what the job left has to be brought"),
            RetryRule(PlanError, never, reason="what was asked for cannot be met"),
            RetryRule(GroupNotFormed, never, reason="the ranks would work apart again"),
            RetryRule(InterconnectNotUsed, never, reason="InfiniBand would be passed over again"),
            RetryRule(OutOfMemory, never, reason="the same memory would run out again"),
            RetryRule([RankFailed, StartFailed], never, reason="the program failed"),
            RetryRule(OutputMissing, never, reason="the job left no such output"),
            RetryRule(JobTimeout, never, reason="there was not enough time"),
        ]
    )
