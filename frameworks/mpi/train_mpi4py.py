"""Fit a line with nothing but mpi4py and NumPy; each rank's data have a slope of their own."""

import json
import os
from pathlib import Path

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Train, and let rank 0 tell what every rank has learned, and by which MPI."""
    comm = MPI.COMM_WORLD
    slopes = comm.gather(train(comm), root=0)
    if slopes is not None:
        told = {"slopes": slopes, "library": MPI.Get_library_version()}
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps(told))


def train(comm: MPI.Comm) -> float:
    """Return the slope that was learned."""
    x = np.linspace(-1, 1, 64)
    y = 2.0 * comm.rank * x
    slope = np.zeros(1)
    for _ in range(50):
        gradient = np.array([np.mean(2 * (slope * x - y) * x)])
        comm.Allreduce(MPI.IN_PLACE, gradient)
        slope -= 0.5 * gradient / comm.size
    return float(slope[0])


if __name__ == "__main__":
    main()
