"""Dated wishes for slots, which keep jobs from overtaking each other."""

from __future__ import annotations

import contextlib
import os
import time

from .facts import user_name
from .files import read_json
from .folders import root_of
from .locks import LOCK_FOLDER, share_folder
from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Json


TICKET_LIFE = 60.0  # seconds that a wish for slots counts after it was renewed


class Ticket:
    """A dated wish for slots of one host: it goes before all later ones while its job renews it."""

    FOLDER = os.path.join(LOCK_FOLDER, "tickets")

    def __init__(self, request: Json) -> None:
        import hashlib

        # Users, and Airflow installations, may have jobs of the same name.
        whose = f"{os.getuid()}:{root_of(request)}:{request['job']}"
        parts = (hashlib.sha256(part.encode()).hexdigest() for part in (whose, request["place"]))
        self.owner, place = (part[:20] for part in parts)
        self.path = os.path.join(self.FOLDER, f"{self.owner}-{place}")
        self.rank = (float(request["since"]), str(request["job"]), self.owner)
        told = {name: request.get(name) for name in ("job", "label", "since", "slots")}
        self.record: Json = {**told, "user": user_name(), "waiting": True}

    @classmethod
    def of(cls, request: Json) -> Ticket | None:
        """Return the ticket of a job that may wait, None for one that may not."""
        return None if request.get("since") is None else cls(request)

    def leave(self) -> None:
        """Write it, or renew it."""
        import tempfile

        with contextlib.suppress(OSError):  # on a full disk the job has to be lucky
            share_folder(LOCK_FOLDER)
            share_folder(self.FOLDER)
            fd, draft = tempfile.mkstemp(prefix=".", dir=self.FOLDER)
            with open(fd, "wb") as file:
                os.fchmod(fd, 0o644)
                file.write(encode(self.record).encode("utf-8", "replace"))
            os.replace(draft, self.path)

    def withdraw(self) -> None:
        """Let others have what the job does not wait for any more."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def claimed_slots(ticket: Ticket | None) -> dict[str, Json]:
    """Return who waits for each slot and goes before this ticket, or before a job without one."""
    claims: dict[str, Json] = {}
    for name, record in live_tickets():
        with contextlib.suppress(LookupError, TypeError, ValueError):  # anybody may write there
            rank = (float(record["since"]), str(record["job"]), name.partition("-")[0])
            if ticket and (rank > ticket.rank or name.startswith(ticket.owner)):
                continue
            for slot in record["slots"]:
                if slot not in claims or record["since"] < claims[slot]["since"]:
                    claims[slot] = record
    return claims


def live_tickets() -> Iterator[tuple[str, Json]]:
    """Yield the name and the content of every ticket that counts."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(Ticket.FOLDER)):
            with contextlib.suppress(OSError):
                age = abs(time.time() - entry.stat(follow_symlinks=False).st_mtime)
                whole = entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
                if age > 10 * TICKET_LIFE:
                    os.unlink(entry.path)
                elif age < TICKET_LIFE and whole:
                    yield entry.name, read_json(entry.path)
