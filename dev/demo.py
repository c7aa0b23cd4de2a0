"""The demo: hosts, Airflow and a distributed training on this machine, from nothing to a report."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dev.airflow import AirflowStack, free_port
from dev.programs import ProgramFailed
from dev.rest import ENDED, AirflowError, Run, until
from dev.setup import hosts_python
from tests.fleet import Fleet
from tests.fleet.record import Mark

DAGS = Path(__file__).parents[1] / "dags"
HOSTS = 2
SLOTS = 2
KINDS = {
    "namespaces": "network namespaces of this machine, each with an sshd and an address of its own",
    "loopback": "sshd processes on loopback, which share this machine",
}
PROGRESS = re.compile(r"\[rank \d+ \S+\] (rank|epoch) ")  # what the example's script says
FOLDER = "distributed-training-demo-"
OWNER = "owner.json"  # in the folder: the process that will clean it up
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Outcome:
    """What the last line says, for programs."""

    state: str = "failed"
    hosts: int = 0
    world_size: int = 0
    accuracy: float | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class Screen:
    """What a person sees."""

    started: float = field(default_factory=time.monotonic)
    shown: set[str] = field(default_factory=set)

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return round(time.monotonic() - self.started, 1)

    def say(self, text: str) -> None:
        """Print a line of progress with the time it came at."""
        show(f"{self.seconds():6.1f} s  {text}")

    def once(self, text: str) -> None:
        """Print what was not printed before."""
        if text not in self.shown:
            self.shown.add(text)
            self.say(text)


def show(text: str) -> None:
    """Print for whoever is still there: a terminal that was closed must not hinder the cleanup."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> int:
    """Run the demo; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m dev.demo", description=__doc__)
    parser.add_argument("--fleet", choices=KINDS, help="what the hosts are made of")
    kind = parser.parse_args().fleet
    screen, outcome = Screen(), Outcome()
    forget_killed()
    folder = make_folder()
    try:
        for number in SIGNALS:
            signal.signal(number, _interrupt)
        _demo(screen, outcome, folder, kind)
    except KeyboardInterrupt as reason:
        kept = _forget_airflow(folder)
        screen.say(f"stopped by {reason}: hosts and Airflow are gone{kept}")
    except (AirflowError, ProgramFailed, RuntimeError, OSError) as error:
        (folder / OWNER).unlink()
        screen.say(f"The demo failed: {error}\n\nAirflow's own logs are kept: {folder}/airflow")
    else:
        _forget_airflow(folder)
    finally:
        if not _terminal():
            show(json.dumps(asdict(outcome)))
    return 0 if outcome.state == "success" else 1


def _interrupt(number: int, _: Any) -> None:
    _ignore_signals()
    raise KeyboardInterrupt(signal.Signals(number).name)


def _ignore_signals() -> None:
    """From now on everything is cleaned up, and that is not to be interrupted."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def make_folder() -> Path:
    """Make the folder of this demo, and note whose it is."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    (folder / OWNER).write_text(json.dumps(asdict(Mark.of(os.getpid()))))
    return folder


def forget_killed() -> None:
    """Clean up after demos of this user that were killed; their programs have ended with them."""
    for note in Path(tempfile.gettempdir()).glob(f"{FOLDER}*/{OWNER}"):
        with suppress(OSError, ValueError, TypeError):
            ours = note.stat().st_uid == os.getuid()
            if ours and not Mark(**json.loads(note.read_text())).alive():
                _forget_airflow(note.parent)


def _forget_airflow(folder: Path) -> str:
    """Leave only what the training brought back, if anything; say where that is."""
    shutil.rmtree(folder / "airflow", ignore_errors=True)
    (folder / OWNER).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
    return f"; what the training brought back is in {folder}" if folder.exists() else ""


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _demo(screen: Screen, outcome: Outcome, folder: Path, kind: str | None) -> None:
    with ExitStack() as cleanup:
        screen.say(f"hosts: starting {HOSTS}")
        fleet = cleanup.enter_context(Fleet.up(HOSTS, kind=kind))
        cleanup.callback(_ignore_signals)
        screen.say(f"hosts: {', '.join(host.name for host in fleet.hosts)} are {KINDS[fleet.kind]}")
        if fleet.why:
            screen.say(f"hosts: not network namespaces, because {fleet.why}")
        stack = _airflow(screen, fleet, folder)
        cleanup.callback(stack.stop)
        cleanup.callback(_ignore_signals)
        stack.start()
        run = stack.api.trigger("train_digits", {"folder": str(folder)})
        user, password = stack.login
        screen.say(f"run: {stack.url}/dags/{run.dag_id}/runs/{run.run_id}")
        screen.say(f"run: the web page lets {user} in with password {password}")
        outcome.state = _follow(run, screen)
        outcome.seconds = screen.seconds()
        _report(run, outcome)
        if _terminal():
            show(f"\nThe web page {stack.url} stays up until you press Ctrl-C.")
            show(f"User {user}, password {password}.")
            signal.pause()


def _airflow(screen: Screen, fleet: Fleet, folder: Path) -> AirflowStack:
    connection = fleet.connection_json(slots=SLOTS, python=str(hosts_python("torch")))
    return AirflowStack(
        home=folder / "airflow",
        dags=DAGS,
        environment={"AIRFLOW_CONN_GPU_FLEET_DEFAULT": connection},
        port=free_port(preferred=8080),
        progress=screen.say,
    )


def _follow(run: Run, screen: Screen) -> str:
    """Show states and ranks' lines while they come; return the state of the run at its end."""
    for _ in until(600, f"run {run.run_id} did not end"):
        state = run.state()
        tasks = run.tasks()
        for task, task_state in tasks.items():
            if task_state:
                screen.once(f"{task}: {task_state}")
        if tasks.get("train"):
            for line in run.log("train"):
                if PROGRESS.match(line):
                    screen.once(f"    {line}")
        if state in ENDED:
            return state
    raise AssertionError("until() raises at its end")


def _report(run: Run, outcome: Outcome) -> None:
    """Print what came of the run, or why nothing did."""
    if outcome.state != "success":
        failed = [task for task, state in run.tasks().items() if state == "failed"]
        raise AirflowError(
            "\n".join(f"task {task}; its log ends:\n{run.story(task)}" for task in failed)
        )
    report = run.xcom("report")
    outcome.hosts, outcome.world_size = len(report["hosts"]), report["world_size"]
    outcome.accuracy = report["accuracy"]
    losses = " ".join(f"{loss:.3f}" for loss in report["loss"])
    show(f"""
Trained by {outcome.world_size} ranks on {", ".join(report["hosts"])}:
  loss      {losses}
  accuracy  {outcome.accuracy:.4f} of digits that the training had not seen
  model     {report["model"]}
  logs      {report["logs"]}""")


if __name__ == "__main__":
    sys.exit(main())
