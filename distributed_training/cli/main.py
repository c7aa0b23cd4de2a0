"""The words of the command line, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

from distributed_training import __version__
from distributed_training.cli import care, doctor, jobs, logs
from distributed_training.cli.session import Session
from distributed_training.errors import PlanError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    Verb = Callable[[Session, argparse.Namespace], Coroutine[None, None, int]]

VERBS: dict[str, Verb] = {
    "doctor": doctor.doctor,
    "ps": jobs.ps,
    "logs": logs.logs,
    "stop": jobs.stop,
    "gc": care.gc,
    "drain": care.drain,
    "undrain": care.undrain,
}
EPILOG = """
examples:
  python -m distributed_training doctor --conn-id gpu_fleet_default
  python -m distributed_training doctor --hostfile hosts --user trainer --key-file id_ed25519
  python -m distributed_training ps --hosts gpu1@gpu2
  python -m distributed_training logs retrain-train-1f0c2a9b7d-1 --rank 3 --follow
  python -m distributed_training stop retrain-train-1f0c2a9b7d-1
  python -m distributed_training drain gpu2 --reason "new fans"

exit status:
  0  all is well
  1  something is not as it should be, or not all hosts answered: it is said which
  2  the command cannot be right: a wrong option, connection or host list, an unknown job or host
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit status."""
    given = parser().parse_args(argv)
    try:
        return asyncio.run(VERBS[given.verb](Session.of(given), given))
    except PlanError as error:
        print(error.message, file=sys.stderr)
        return 2
    except TrainingError as error:
        print(error.message, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C; `| head` has seen enough
        sys.stderr.close()
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    whole = argparse.ArgumentParser(
        prog="python -m distributed_training",
        description="Look after the hosts of a fleet and the jobs on them. Airflow need not run.",
        epilog=dedent(EPILOG),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=__version__)
    verbs = whole.add_subparsers(dest="verb", required=True, metavar="VERB")
    fleet = _fleet()
    _add_doctor(verbs, fleet)
    _add_jobs(verbs, fleet)
    _add_care(verbs, fleet)
    return whole


def _fleet() -> argparse.ArgumentParser:
    """Return the options that tell which hosts are meant."""
    options = argparse.ArgumentParser(add_help=False)
    fleet = options.add_argument_group("fleet")
    source = fleet.add_mutually_exclusive_group()
    source.add_argument(
        "--conn-id",
        metavar="ID",
        help="connection, from the environment (AIRFLOW_CONN_…), a secrets backend or Airflow's "
        "database (default: gpu_fleet_default)",
    )
    source.add_argument("--hostfile", metavar="FILE", help="list of hosts, without a connection")
    fleet.add_argument("--user", help="SSH user of a hostfile's hosts")
    fleet.add_argument("--key-file", metavar="FILE", help="private key for a hostfile's hosts")
    fleet.add_argument("--port", type=int, help="SSH port of a hostfile's hosts")
    fleet.add_argument("--work-dir", metavar="FOLDER", help="extra work_dir, for a hostfile")
    fleet.add_argument("--hosts", metavar="HOSTS", help="some of them, as in gpu1@gpu2")
    return options


if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def _add_doctor(verbs: Verbs, fleet: argparse.ArgumentParser) -> None:
    verb = verbs.add_parser("doctor", parents=[fleet], help="check hosts as a launch would")
    verb.add_argument("--python", help="interpreter whose packages are compared (python3)")
    verb.add_argument("--json", action="store_true", help="print JSON")


def _add_jobs(verbs: Verbs, fleet: argparse.ArgumentParser) -> None:
    verb = verbs.add_parser("ps", parents=[fleet], help="list jobs on all hosts")
    verb.add_argument("--all", action="store_true", help="also those that have ended")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb = verbs.add_parser("logs", parents=[fleet], help="print what the ranks of a job printed")
    verb.add_argument("job")
    verb.add_argument("--rank", type=int, help="of this rank alone")
    verb.add_argument("--follow", action="store_true", help="go on until the job has ended")
    verb = verbs.add_parser(
        "stop", parents=[fleet], help="end a job on all hosts, and wait until nothing is left of it"
    )
    which = verb.add_mutually_exclusive_group(required=True)
    which.add_argument("job", nargs="?")
    which.add_argument("--all", action="store_true", help="every job")


def _amount(text: str) -> float:
    """Read a number of which there may be none."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return number


def _add_care(verbs: Verbs, fleet: argparse.ArgumentParser) -> None:
    verb = verbs.add_parser("gc", parents=[fleet], help="remove what ended jobs have left on hosts")
    verb.add_argument(
        "--days", type=_amount, help="older than this (what each task says with keep_days)"
    )
    verb.add_argument("--max-gb", type=_amount, help="and the oldest beyond so many GB on a host")
    verb.add_argument("--dry-run", action="store_true", help="only tell what would be removed")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb = verbs.add_parser("drain", parents=[fleet], help="let no new job start on hosts")
    verb.add_argument("host", nargs="+")
    verb.add_argument("--reason", help="shown to whom it concerns")
    verb = verbs.add_parser(
        "undrain", parents=[fleet], help="give drained or quarantined hosts back"
    )
    verb.add_argument("host", nargs="+")
