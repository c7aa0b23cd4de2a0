"""The hosts that a command line means, and their agents."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed_training.errors import PlanError, TrainingError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from distributed_training.hooks.fleet import FleetHook
    from distributed_training.run.agents import HostAgent


@dataclass(slots=True)
class Answers:
    """What hosts answered, by name, and why the others did not."""

    given: dict[str, dict[str, Any]]
    missing: dict[str, TrainingError]

    def tell_missing(self) -> int:
        """Name the hosts that did not answer; return the exit status."""
        for error in self.missing.values():
            print(error.message, file=sys.stderr)
        return 1 if self.missing else 0


@dataclass(slots=True)
class Session:
    """The hosts of a fleet, as far as they were chosen."""

    hook: FleetHook

    @classmethod
    def of(cls, given: argparse.Namespace) -> Session:
        """Find what the options name.

        :raises PlanError: a connection or a host list cannot be right
        """
        # Airflow reads its own database where a process says that it belongs to the server.
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
        with redirect_stdout(sys.stderr):  # what Airflow logs is no part of an answer
            from distributed_training.hooks.fleet import FleetHook
            from distributed_training.hooks.login import Settings

            conn_id = given.conn_id or FleetHook.default_conn_name
            hook = FleetHook(conn_id, hostfile=given.hostfile, hosts=given.hosts)
            own = {name: getattr(given, name) for name in ("key_file", "work_dir")}
            extras = {name: value for name, value in own.items() if value}
            if given.hostfile:
                hook.settings = Settings("hostfile", given.user, None, None, given.port, extras)
            elif extras or given.user or given.port:
                raise PlanError(
                    "--user, --key-file, --port and --work-dir go with --hostfile; "
                    "a connection tells them itself"
                )
            _ = hook.fleet
        return cls(hook)

    def agents(self) -> AbstractAsyncContextManager[dict[str, HostAgent]]:
        """Return the agents of all hosts by name."""
        return self.hook.agents()

    async def ask_all(self, verb: str, **fields: Any) -> Answers:
        """Ask the agents of all hosts at once."""
        async with self.agents() as agents:
            return await ask(agents, dict.fromkeys(agents, fields), verb)


async def ask(
    agents: Mapping[str, HostAgent], requests: Mapping[str, dict[str, Any]], verb: str
) -> Answers:
    """Ask agents at once, each for its own."""
    answers = Answers({}, {})

    async def one(name: str, fields: dict[str, Any]) -> None:
        try:
            answers.given[name] = await agents[name].call(verb, **fields)
        except TrainingError as error:
            answers.missing[name] = error

    await asyncio.gather(*(one(name, fields) for name, fields in requests.items()))
    answers.given = {name: answers.given[name] for name in requests if name in answers.given}
    return answers
