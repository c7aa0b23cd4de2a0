"""What others than the agent start on a node: ranks, and the daemons that stand between."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json

    Command = tuple[str, int | None, list[str], dict[str, str]]


class Launched:
    """Commands that wait, in memory alone, for who comes to execute them."""

    def __init__(self) -> None:
        self.ranks: dict[int, Json] = {}
        self._daemon: Command | None = None

    @property
    def is_served(self) -> bool:
        """Whether the launcher is on another host, and ends its daemon here when it ends."""
        return self._daemon is not None

    def takes(self, process: Json, command: Command) -> bool:
        """Keep a command that is not the agent's to execute at once, and tell whether it is one."""
        _, rank, argv, env = command
        by = process.get("started_by", "agent")
        if by == "relay":
            self._daemon = command
        elif by == "launcher":
            assert rank is not None
            self.ranks[rank] = {"argv": argv, "env": env, "set": list(process["env"])}
        return bool(by != "agent")

    def daemon(self, number: str, words: str) -> Command:
        """Return what runs a command of a launcher on another host."""
        if self._daemon is None:
            raise LookupError("no launcher elsewhere has anything to run here")
        _, _, argv, env = self._daemon
        return f"daemon-{number}", None, [*argv, words], env
