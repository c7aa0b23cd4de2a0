"""A task that waits in a trigger of the tests."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, BaseOperator, Param

from tests.e2e.probe import Probe, note


class ProbedOperator(BaseOperator):
    """Notes that it runs, and waits."""

    template_fields = ("folder",)

    def __init__(self, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = folder

    def execute(self, context: Any) -> None:
        """Defer for ever."""
        note(self.folder, "executed")
        self.defer(trigger=Probe(self.folder), method_name="execute")


PARAMS: Any = {"folder": Param("", type="string")}

with DAG("probed", schedule=None, params=PARAMS) as dag:
    ProbedOperator(task_id="wait", folder="{{ params.folder }}")
