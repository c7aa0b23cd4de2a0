"""Functions as tasks that run in each rank, one file per family of launchers."""
