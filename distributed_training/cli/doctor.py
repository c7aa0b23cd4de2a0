"""`doctor`: check hosts as a launch would, and say what to do."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from distributed_training.cli.session import Session
    from distributed_training.run.preflight import Preflight


async def doctor(session: Session, given: argparse.Namespace) -> int:
    """Print a table of all hosts, and what is wrong."""
    preflight = await session.hook.examine(given.python)
    names = [host.name for host in session.hook.fleet.hosts]
    if given.json:
        print(json.dumps(_record(preflight, names), indent=2))
    else:
        print(preflight.table(names))
    return 1 if preflight.failures() else 0


def _record(preflight: Preflight, names: list[str]) -> dict[str, Any]:
    known = preflight.offers
    return {
        "hosts": {
            name: {
                "state": preflight.state(name),
                **(preflight.cells(known[name]) if name in known else {}),
            }
            for name in names
        },
        "findings": [dataclasses.asdict(finding) for finding in preflight.findings],
    }
