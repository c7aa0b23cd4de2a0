"""Many jobs on real hosts under a real Airflow, and things that go wrong: `make chaos`."""
