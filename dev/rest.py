"""What the demo and the tests use of Airflow's REST interface, as a user of the web page would."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

Progress = Callable[[str], None]
ENDED = frozenset({"success", "failed"})


class AirflowError(Exception):
    """Raised when Airflow does not start, or does not do what it was asked to; says why."""


@dataclass(frozen=True, slots=True)
class Api:
    """Airflow's REST interface, logged in."""

    http: httpx.Client

    @classmethod
    def login(cls, url: str, user: str, password: str) -> Api:
        """Return the interface of the Airflow at ``url`` for this user."""
        api = cls(httpx.Client(base_url=url, timeout=30))
        token = api.call("POST", "/auth/token", {"username": user, "password": password})
        api.http.headers["Authorization"] = f"Bearer {token['access_token']}"
        return api

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Return the JSON that Airflow answers."""
        try:
            answer = self.http.request(method, path, json=body, params=query)
        except httpx.TransportError as error:
            raise AirflowError(
                f"{method} {self.http.base_url}{path}: no answer ({error!r}); is the API server up?"
            ) from error
        if answer.is_error:
            raise AirflowError(
                f"{method} {self.http.base_url}{path}: {answer.status_code} {answer.text[:2000]}"
            )
        return answer.json() if answer.content else None

    def wait_for_dag(self, dag_id: str, timeout: float = 60) -> None:
        """Return once the DAG processor has read this DAG."""
        for _ in until(timeout, f"DAG {dag_id} was not found in the DAG folder"):
            dags = self.call("GET", "/api/v2/dags", dag_id_pattern=dag_id, limit=1000)["dags"]
            if any(dag["dag_id"] == dag_id for dag in dags):
                return
            for failure in self.call("GET", "/api/v2/importErrors")["import_errors"]:
                raise AirflowError(
                    f"Airflow cannot import {failure['filename']}:\n{failure['stack_trace']}"
                )

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> Run:
        """Start a run of the DAG with these parameters."""
        self.wait_for_dag(dag_id)
        body = {"logical_date": None, "conf": conf or {}}
        started = self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        return Run(self, dag_id, started["dag_run_id"])


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a DAG."""

    api: Api
    dag_id: str
    run_id: str

    def _call(self, method: str, path: str = "", body: Any = None, **query: Any) -> Any:
        run = f"/api/v2/dags/{self.dag_id}/dagRuns/{quote(self.run_id, safe='')}"
        return self.api.call(method, run + path, body, **query)

    def state(self) -> str:
        """Return the state of the whole run."""
        return str(self._call("GET")["state"])

    def tasks(self) -> dict[str, str | None]:
        """Return the state of every task."""
        instances = self._call("GET", "/taskInstances")["task_instances"]
        return {instance["task_id"]: instance["state"] for instance in instances}

    def task(self, task_id: str) -> dict[str, Any]:
        """Return all that Airflow tells about a task of this run."""
        return dict(self._call("GET", f"/taskInstances/{task_id}"))

    def log(self, task_id: str, try_number: int = 1) -> list[str]:
        """Return the lines of the task's log so far, as the web page shows them."""
        path = f"/taskInstances/{task_id}/logs/{try_number}"
        content = self._call("GET", path, full_content=True)["content"]
        return [text for line in content for text in lines_of(line)]

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        """Return a value that the task has left."""
        return self._call("GET", f"/taskInstances/{task_id}/xcomEntries/{key}")["value"]

    def mark(self, task_id: str, state: str) -> None:
        """Mark the task success, failed or skipped, as the buttons of the web page do."""
        self._call("PATCH", f"/taskInstances/{task_id}", {"new_state": state})

    def fail(self) -> None:
        """Mark the whole run as failed, which ends what it runs."""
        self._call("PATCH", body={"state": "failed"})

    def clear(self, task_id: str) -> None:
        """Clear the task, as the button of the web page does: it runs once more."""
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": [task_id],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.api.call("POST", f"/api/v2/dags/{self.dag_id}/clearTaskInstances", body)

    def wait(self, timeout: float = 240) -> str:
        """Return the run's state once it has ended."""
        for _ in until(timeout, f"run {self.run_id} of {self.dag_id} did not end"):
            if (state := self.state()) in ENDED:
                return state
        raise AssertionError("until() raises at its end")

    def wait_for_task(self, task_id: str, *states: str, timeout: float = 120) -> str:
        """Return the task's state once it is one of these; another end is an error."""
        for _ in until(timeout, f"task {task_id} of {self.run_id} did not become {states}"):
            state = self.tasks().get(task_id)
            if state in states:
                return state
            if state in ENDED | {"upstream_failed", "skipped"}:
                raise AirflowError(
                    f"task {task_id} is {state}, not {states}:\n{self.story(task_id)}"
                )
        raise AssertionError("until() raises at its end")

    def wait_for_line(
        self, task_id: str, text: str, *, try_number: int = 1, timeout: float = 120
    ) -> str:
        """Return the first line of the task's log that holds this text, once it is there."""
        for _ in until(timeout, f"no line of {task_id} of {self.run_id} said {text!r}"):
            started = self.task(task_id)["try_number"] >= try_number
            for line in self.log(task_id, try_number) if started else ():
                if text in line:
                    return line
            if self.state() in ENDED:
                raise AirflowError(f"{task_id} ended without {text!r}:\n{self.story(task_id)}")
        raise AssertionError("until() raises at its end")

    def story(self, task_id: str) -> str:
        """Return the end of the task's log, for an error message."""
        return "\n".join(f"    {line}" for line in self.log(task_id)[-30:])


def lines_of(line: str | dict[str, Any]) -> Iterator[str]:
    """Yield an entry of a log, and what it tells of an error."""
    if isinstance(line, str):
        yield line
        return
    yield line["event"]
    for error in line.get("error_detail") or ():
        yield from f"{error['exc_type']}: {error['exc_value']}".splitlines()


def until(timeout: float, failure: str, pause: float = 0.5) -> Iterator[None]:
    """Yield now and every ``pause`` seconds; raise ``failure`` after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        yield
        time.sleep(pause)
    raise AirflowError(f"{failure} within {timeout:.0f} s")
