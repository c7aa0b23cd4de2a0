"""What the ready-made retry policy decides about every error there is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import ExceptionRetryPolicy, RetryAction

from distributed_training.errors import TrainingError
from distributed_training.operators.retry import retry_policy

AGAIN = {
    "NodeLost", "HostUnreachable", "ConnectionLost", "HostWithheld", "GpuFault", "PortTaken",
    "SlotsBusy", "JobCancelled", "DeliveryFailed",
}  # fmt: skip
NEVER = {
    "PlanError", "RankFailed", "GroupNotFormed", "OutOfMemory", "StartFailed", "OutputMissing",
    "JobTimeout", "InterconnectNotUsed",
}  # fmt: skip
AS_USUAL = {"TrainingError", "AgentError", "PreflightFailed", "JobStalled", "JobTakenOver"}
DECISIONS = (
    dict.fromkeys(AGAIN, RetryAction.RETRY)
    | dict.fromkeys(NEVER, RetryAction.FAIL)
    | dict.fromkeys(AS_USUAL, RetryAction.DEFAULT)
)


def decision(error: str, policy: ExceptionRetryPolicy | None = None):
    kind = TrainingError.classes.get(error, TrainingError)
    return (policy or retry_policy()).evaluate(kind("words"), 1, 3)


def test_every_error_was_thought_of():
    assert {"TrainingError", *TrainingError.classes} == DECISIONS.keys()


@pytest.mark.parametrize(("error", "action"), sorted(DECISIONS.items()))
def test_faults_of_machines_are_retried_and_bugs_are_not(error, action):
    assert decision(error).action is action


def test_busy_slots_may_be_given_more_time():
    policy = retry_policy(timedelta(seconds=5), busy_delay=timedelta(minutes=5))
    assert decision("SlotsBusy", policy).retry_delay == timedelta(minutes=5)
    assert decision("NodeLost", policy).retry_delay == timedelta(seconds=5)


def test_the_policy_survives_the_way_to_the_scheduler():
    written = retry_policy(timedelta(seconds=5)).serialize()
    read = ExceptionRetryPolicy.deserialize(written)
    assert read.serialize() == written
    assert decision("NodeLost", read).reason == "a host was lost"
