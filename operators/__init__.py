"""The operators that DAGs use, one file per family of launchers."""
