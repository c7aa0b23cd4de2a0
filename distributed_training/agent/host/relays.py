"""What an mpirun of this host wants to run on other hosts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .desk import Client
    from .journal import Journal
    from .records import Json


class Relays:
    """Commands for other hosts. The journal tells them to the watcher, who brings their ends.

    Each has a number by which it is told apart, since watchers may change and tell of it twice.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: dict[str, Client] = {}

    def ask(self, client: Client, message: Json) -> None:
        """Take a command; its sender waits for the end of it."""
        number = str(len(self._waiting) + 1)
        self._waiting[number] = client
        self._journal.add("relay", id=number, host=message["host"], command=message["command"])

    def answer(self, message: Json) -> None:
        """Tell whoever waits how the command has ended."""
        self._waiting[message["id"]].reply({"ok": True, "code": message["code"]})
