"""`python -m bench [ROWS] [--pairs N]`: ours and its peers by turns, on hosts of this machine."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING

# Airflow makes its home when it is imported; a user's own is none of our business.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")

from bench import report
from bench.measure import NotMeasured, measure
from bench.rows import ROWS
from bench.stage import stage
from distributed_training.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Measurement
    from bench.rows import Row

PAIRS = 5  # fewer say nothing: such a run is shown, and not kept


def main() -> int:
    """Measure what is asked for; the status is 0 if every row could be measured, however slow."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="names of rows, with commas")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each row (%(default)s)")
    options = parser.parse_args()
    rows = chosen([word.strip() for word in options.only.split(",") if word.strip()])
    if options.pairs < 1:
        parser.error(f"--pairs must be 1 or more, not {options.pairs}")
    machine = report.Machine.here(list(dict.fromkeys(row.environment for row in rows)))
    found = measured(rows, options.pairs)
    print(f"\n{report.table(found)}\n{machine}")
    if len(found) < len(ROWS) or options.pairs < PAIRS:
        print(f"not kept: that takes all rows, and {PAIRS} pairs of each")
    else:
        print(f"kept in {report.keep(found, machine)} and on {report.PAGE}")
    return 0 if len(found) == len(rows) else 1


def chosen(names: Sequence[str]) -> list[Row]:
    """Return the rows of these names; all, if there are none.

    :raises SystemExit: no row is called so
    """
    known = {row.name: row for row in ROWS}
    for name in names:
        if name not in known:
            raise SystemExit(f"no row {name!r}: there are {', '.join(known)}")
    return [row for row in ROWS if not names or row.name in names]


def measured(rows: Sequence[Row], pairs: int) -> list[Measurement]:
    """Measure rows one after the other, each on hosts of its own; say why one could not be."""
    found = []
    for row in rows:
        print(f"{row.name}: {row.what}, against {row.against}", flush=True)
        try:
            with stage(row.environment) as hosts:
                each = measure(row, hosts, pairs)
        except (NotMeasured, TrainingError) as error:
            print(f"  not measured: {error}", flush=True)
        else:
            print(f"  ours {each.ours}, peer {each.peer}", flush=True)
            found.append(each)
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(os.environ["AIRFLOW_HOME"], ignore_errors=True)
