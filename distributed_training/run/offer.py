"""Ask every candidate host, all at once, what it has to offer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from distributed_training.errors import HostUnreachable, TrainingError
from distributed_training.plan import Offer
from distributed_training.run.agents import ANSWER_TIMEOUT, HostAgent, answers_of_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


async def offers(
    agents: Sequence[HostAgent],
    source: str | None = None,
    wish: Callable[[str], Mapping[str, Any]] = lambda host: {},
    checkpoint_dir: str | None = None,
    needed: int | None = None,
    within: float = ANSWER_TIMEOUT,
    log: Callable[[str], None] = lambda line: None,
) -> list[Offer]:
    """Return the offers of all hosts in their order.

    :param source: hash of the snapshot that the job needs, so that a host can say if it has it
    :param wish: :meth:`JobSpec.wish` for each host by name; slots that older jobs wait for are
        told as busy
    :param checkpoint_dir: folder in which each host looks for its newest complete checkpoint
    :param needed: how many hosts must answer, where the job leaves a choice; None: all
    :param within: seconds that a host has to answer
    :param log: told which hosts did not answer, if the others are enough
    :raises TrainingError: some hosts cannot be reached or asked; the message names every one
    """

    async def ask(agent: HostAgent) -> Offer:
        fields = {"source": source, "checkpoint_dir": checkpoint_dir, **wish(agent.host.name)}
        try:
            return await offer(agent, within=within, **fields)
        except HostUnreachable:
            await agent.transport.close()  # a connection may be broken and not know it yet
            raise

    answers, errors = await answers_of_all(agents, ask)
    if errors and (needed is None or len(answers) < needed):
        raise type(errors[0]).together([*errors, *_advice(errors, answers)])
    for error in errors:
        log(f"WARNING: not asked for any rank: {error.message}")
    return answers


def _advice(errors: Sequence[TrainingError], answers: Sequence[Offer]) -> list[TrainingError]:
    """Return how to go on without hosts that are not there, if others are."""
    if not answers or not isinstance(errors[0], HostUnreachable):
        return []
    names = "@".join(offer.host.name for offer in answers)
    return [HostUnreachable(f"To go on without, select the others: hosts={names!r}")]


async def offer(agent: HostAgent, **fields: Any) -> Offer:
    """Return the offer of one host, with what its clock shows."""
    asked = time.time()
    answer = await agent.call("offer", **fields)
    now = time.time()
    offset = answer["clock"] - (asked + now) / 2
    return Offer.from_reply(agent.host, answer, clock_offset=offset, round_trip=now - asked)
