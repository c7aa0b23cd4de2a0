"""Distributed training on your own GPU hosts, as Apache Airflow tasks."""

__version__ = "0.1.0"
