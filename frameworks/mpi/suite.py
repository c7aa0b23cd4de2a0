"""Run mpi4py's own tests in every rank, as ``mpirun python test/main.py`` does."""

import json
import os
import sys
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, os.environ["MPI4PY_TESTS"])
from main import TestProgram


class Suite(TestProgram):
    """The tests of mpi4py, after which the rank goes on."""

    def runTests(self) -> None:
        """Run them; what they find is in ``result``."""
        try:
            super().runTests()
        except SystemExit as ended:
            print(f"the tests ended with status {int(ended.code or 0)}")


def main() -> None:
    """Run the tests, and let rank 0 tell what each rank has found, and by which MPI."""
    found = Suite(module=None, verbosity=2).result
    bad = [str(test) for test, _ in (*found.failures, *found.errors)]
    told = {"ran": found.testsRun, "skipped": len(found.skipped), "bad": bad}
    ranks = MPI.COMM_WORLD.gather(told)
    if ranks is not None:
        result = {"ranks": ranks, "library": MPI.Get_library_version()}
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
