"""`gc`, `drain` and `undrain`: looking after hosts."""

from __future__ import annotations

import getpass
import json
import socket
from typing import TYPE_CHECKING, Any

from distributed_training.cli.session import ask
from distributed_training.errors import PlanError

if TYPE_CHECKING:
    import argparse

    from distributed_training.cli.session import Answers, Session

GB = 1e9


async def gc(session: Session, given: argparse.Namespace) -> int:
    """Remove what ended jobs have left, and unused sources."""
    answers = await session.ask_all(
        "gc",
        keep_days=given.days,
        max_bytes=given.max_gb and given.max_gb * GB,
        dry_run=given.dry_run,
    )
    if given.json:
        print(json.dumps(answers.given, indent=2))
        return answers.tell_missing()
    would = "would remove" if given.dry_run else "removed"
    for host, answer in answers.given.items():
        size, left = answer["bytes"] / GB, answer["left"] / GB
        print(f"{host}: {would} {len(answer['removed'])} ({size:.2f} GB), {left:.2f} GB are left")
        for name in answer["removed"] if given.dry_run else ():
            print(f"  {name}")
    return answers.tell_missing()


async def drain(session: Session, given: argparse.Namespace) -> int:
    """Let no new job start on hosts; what runs there goes on."""
    by = f"{getpass.getuser()} on {socket.gethostname()}"
    answers = await _mark(session, given.host, drained={"by": by, "reason": given.reason})
    for host in answers.given:
        print(f"{host}: drained; jobs that run there go on, new ones go elsewhere")
    return answers.tell_missing()


async def undrain(session: Session, given: argparse.Namespace) -> int:
    """Give hosts back, drained or quarantined."""
    answers = await _mark(session, given.host, drained=None, fault=None)
    for host in answers.given:
        print(f"{host}: jobs may use it again")
    return answers.tell_missing()


async def _mark(session: Session, hosts: list[str], **marks: Any) -> Answers:
    chosen = [host.name for host in session.hook.fleet.select(hosts).hosts]
    if any(":" in name for name in hosts):
        raise PlanError("whole hosts are drained; name them without slots")
    async with session.agents() as agents:
        return await ask(agents, {name: dict(marks) for name in chosen}, "mark")
