"""`python -m tests.chaos`: the whole run, which goes on where an interrupted one has stopped."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.chaos.checks import Findings
from tests.chaos.play import Player
from tests.chaos.scenario import rounds
from tests.chaos.stage import Stage

STATE = Path(__file__).parents[2] / "build" / "chaos.json"


def main() -> int:
    """Run; the last line says what was found, and the status is 0 if that is nothing."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=200)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    done, findings = _resume(given.seed, given.faults)
    left = list(rounds(given.seed, given.faults))[done:]
    if left:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder, Stage(Path(folder), say) as on:
            for part in left:
                findings.add(Player(on, part, say).play())
                _save(given.seed, given.faults, part.number + 1, findings)
    STATE.unlink(missing_ok=True)
    if findings.unexcused:
        say(f"{findings.unexcused} jobs failed although nothing had befallen them")
    print(findings, flush=True)
    return 0 if findings.clean else 1


def say(text: str) -> None:
    """Tell what happens, and when."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _resume(seed: int, faults: int) -> tuple[int, Findings]:
    """Return how many rounds an interrupted run of the same kind has played, and what it found."""
    if not STATE.exists():
        return 0, Findings()
    record = json.loads(STATE.read_text())
    if (record["seed"], record["faults"]) != (seed, faults):
        return 0, Findings()
    say(f"going on after round {record['rounds'] - 1} of an interrupted run")
    return record["rounds"], Findings(**record["findings"])


def _save(seed: int, faults: int, played: int, findings: Findings) -> None:
    STATE.parent.mkdir(exist_ok=True)
    record = {"seed": seed, "faults": faults, "rounds": played, "findings": asdict(findings)}
    STATE.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
