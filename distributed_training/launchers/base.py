"""What every launcher does: turn placed nodes into the processes that their agents start."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from distributed_training.environment import check_environment
from distributed_training.errors import PlanError
from distributed_training.placing import place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_training.plan import JobSpec, Node, Offer, Plan, Process


class Launcher(ABC):
    """One way of starting ranks."""

    name: ClassVar[str]
    is_elastic: ClassVar[bool] = False  # whether its ranks may go on without those of a lost host
    reserved: ClassVar[tuple[str, ...]] = ()  # variables that it sets besides those of all
    needs_site: ClassVar[bool] = False  # our `sitecustomize`, whatever else wants it
    packages: ClassVar[tuple[str, ...]] = ()  # that the hosts' Python must have

    def plan(self, spec: JobSpec, offers: Sequence[Offer], attempt: int = 0) -> Plan:
        """Return the complete plan: a pure value that says what runs where.

        :raises PlanError: the request cannot be met; nothing was started.
        """
        check_environment(spec, self.reserved)
        if spec.min_nodes is not None and not self.is_elastic:
            raise PlanError(
                f"nnodes='{spec.min_nodes}:{spec.nnodes}' is for launcher='torchrun' of "
                f"TorchDistributedOperator: ranks of launcher {self.name!r} cannot go on without "
                "those of a lost host; give one number"
            )
        plan = self.place(spec, offers, attempt)
        nodes = tuple(
            dataclasses.replace(node, processes=self.processes(plan, node)) for node in plan.nodes
        )
        return dataclasses.replace(plan, nodes=nodes)

    def place(self, spec: JobSpec, offers: Sequence[Offer], attempt: int) -> Plan:
        """Return which rank runs where.

        :raises PlanError: what is wanted does not fit what is offered
        """
        return place(spec, offers, attempt)

    @abstractmethod
    def processes(self, plan: Plan, node: Node) -> tuple[Process, ...]:
        """Return what the node's agent executes."""


def socket_address(host: str, port: int) -> str:
    """Return where something listens, in one word."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def program_argv(spec: JobSpec, local_rank: str | None = None) -> tuple[str, ...]:
    """Return the argument vector of a rank's program.

    :param local_rank: argument that tells old scripts their local rank; it goes before theirs,
        where ``torch.distributed.launch`` put it
    """
    program = spec.program
    arguments = (*((local_rank,) if local_rank else ()), *program.arguments)
    if program.kind == "script":
        return (spec.python, str(program.value), *arguments)
    if program.kind == "module":
        return (spec.python, "-m", str(program.value), *arguments)
    if isinstance(program.value, str):
        # The arguments follow the text as positional parameters, so that no shell reads them.
        return (
            "bash",
            "-c",
            f'{program.value} "$@"' if arguments else program.value,
            "bash",
            *arguments,
        )
    return (*program.value, *arguments)
