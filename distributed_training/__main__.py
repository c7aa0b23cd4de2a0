"""Look after a fleet from a shell: `python -m distributed_training --help`."""

from __future__ import annotations

import sys

from distributed_training.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
