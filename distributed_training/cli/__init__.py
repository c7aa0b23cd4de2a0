"""The command line: what can be done with a fleet from a shell, whether Airflow is up or down."""
