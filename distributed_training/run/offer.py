"""Ask every candidate host, all at once, what it has to offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed_training.plan import Offer
from distributed_training.run.agents import HostAgent, on_all

if TYPE_CHECKING:
    from collections.abc import Sequence


async def offers(agents: Sequence[HostAgent], source: str | None = None) -> list[Offer]:
    """Return the offers of all hosts in their order.

    :param source: hash of the snapshot that the job needs, so that a host can say if it has it
    :raises TrainingError: some hosts cannot be reached or asked; the message names every one
    """

    async def ask(agent: HostAgent) -> Offer:
        return Offer.from_reply(agent.host, await agent.call("offer", source=source))

    return await on_all(agents, ask)
