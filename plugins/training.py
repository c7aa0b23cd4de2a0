"""The plugin that puts *Training* and *Fleets* into Airflow's web page.

Every process of Airflow imports this module, so it imports nothing that serves pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PREFIX = "/distributed-training"
# Relative to the base of Airflow's own page, which need not be the root of its server.
FOLDER = PREFIX.removeprefix("/")
RUN = f"{FOLDER}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}"
TASK = f"{FOLDER}/task?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&task_id={{TASK_ID}}"


async def pages(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the pages; what they need is imported when somebody asks for one."""
    from distributed_training.plugins.pages import app

    await app(scope, receive, send)


def _view(name: str, destination: str, route: str, href: str, **more: Any) -> dict[str, Any]:
    icons = {
        "icon": f"{FOLDER}/static/icon.svg",
        "icon_dark_mode": f"{FOLDER}/static/icon-dark.svg",
    }
    view = {"name": name, "destination": destination, "url_route": route, "href": href}
    return {**view, **icons, **more}


class TrainingPlugin(AirflowPlugin):
    """A page for a training, one for the trainings of a run, and one for the fleets."""

    name = "distributed_training"
    fastapi_apps = [  # noqa: RUF012 (as the base class declares it)
        {"app": pages, "url_prefix": PREFIX, "name": "Distributed training"}
    ]
    external_views = [  # noqa: RUF012
        _view("Training", "task_instance", "training", f"{TASK}&map_index={{MAP_INDEX}}"),
        _view("Training", "dag_run", "training-run", RUN),
        _view("Fleets", "nav", "fleets", f"{FOLDER}/fleets", nav_top_level=True),
    ]
