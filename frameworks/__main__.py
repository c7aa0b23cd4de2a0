"""`python -m frameworks [NAMES]`: run the table on two test hosts, and print it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from importlib.metadata import distributions
from typing import TYPE_CHECKING

# Airflow makes its home when it is imported; a user's own is none of our business.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")

from dev.environments import CHECKOUT, hosts_folder
from dev.setup import hosts_python
from frameworks import environments
from frameworks.environments import HOROVOD
from frameworks.row import HOSTS, SLOTS
from frameworks.rows import ROWS
from frameworks.running import run
from tests.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frameworks.row import Row
    from frameworks.running import Outcome

LOGS = CHECKOUT / "build/frameworks"
COLUMNS = "{:<36} {:<10} {:<12} {:<6} {:>7}  {:<8} {}"


def main() -> int:
    """Run what is asked for; the status is 0 if no row failed."""
    parser = argparse.ArgumentParser(prog="python -m frameworks", description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="families or names, with commas")
    rows = chosen([word.strip() for word in parser.parse_args().only.split(",") if word.strip()])
    os.umask(0o022)  # the users of the test hosts must be able to read what root installs
    for row in rows:
        environments.make(row)
    LOGS.mkdir(parents=True, exist_ok=True)
    with Fleet.up(HOSTS) as fleet:
        return run_all(rows, fleet)


def chosen(words: Sequence[str]) -> list[Row]:
    """Return the rows of these families and names; all, if there are none.

    :raises SystemExit: no row is called so
    """
    if not words:
        return list(ROWS)
    known = {word for row in ROWS for word in called(row)}
    for word in words:
        if word.lower() not in known:
            raise SystemExit(f"no row {word!r}: there are {', '.join(sorted(known))}")
    wanted = {word.lower() for word in words}
    return [row for row in ROWS if called(row) & wanted]


def called(row: Row) -> set[str]:
    """Return by which words a row can be chosen: of its family, its name, both, or under an MPI."""
    family, name = row.family.lower(), row.name.lower()
    under = {"mpi"} if "MPI" in row.launcher else set()
    return {family, name, f"{family}: {name}", *under}


def run_all(rows: Sequence[Row], fleet: Fleet) -> int:
    """Run rows one after the other, and print each when it has ended."""
    print(COLUMNS.format("framework", "version", "launcher", "where", "seconds", "", "checked"))
    failed = 0
    for number, row in enumerate(rows):
        python = hosts_python(row.environment)
        os.environ["AIRFLOW_CONN_GPU_FLEET_DEFAULT"] = fleet.connection_json(slots=SLOTS)
        name = f"{number:02} {row.family} {row.name} {row.launcher}".replace(" ", "-")
        log = LOGS / f"{name}.log"
        outcome = run(row, python, log)
        print(line(row, outcome), flush=True)
        if outcome.state == "failed":
            failed += 1
            print(f"    its log: {log}", flush=True)
    print(f"{len(rows) - failed} of {len(rows)} as they should be")
    return 1 if failed else 0


def line(row: Row, outcome: Outcome) -> str:
    """Return a row as the table shows it."""
    return COLUMNS.format(
        f"{row.family}: {row.name}", version(row), row.launcher, outcome.where,
        f"{outcome.took:.1f}", outcome.state, outcome.told,
    )  # fmt: skip


def version(row: Row) -> str:
    """Return the version of a row's package on the hosts."""
    folder = hosts_folder(row.environment)
    places = [str(place) for place in (*folder.glob("lib/*/site-packages"), folder / HOROVOD)]
    found = next(iter(distributions(name=row.package, path=places)), None)
    return found.version if found else "?"


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(os.environ["AIRFLOW_HOME"], ignore_errors=True)
