"""Postgres and Redis of the tests answer, and nothing is left of them."""

from __future__ import annotations

from pathlib import Path

import psycopg2
import redis

from dev.services import teams_services


def test_both_answer_and_leave_nothing() -> None:
    with teams_services() as variables:
        broker = variables["AIRFLOW__CELERY__BROKER_URL"].removeprefix("redis+socket://")
        host = variables["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].partition("host=")[2]
        assert redis.Redis(unix_socket_path=broker).ping()
        with psycopg2.connect(host=host, user="postgres") as connection:
            cursor = connection.cursor()
            cursor.execute("SHOW listen_addresses")
            assert cursor.fetchone() == ("",)
        connection.close()
    assert not Path(host).exists()
