"""Who may see what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from playwright.sync_api import expect

from distributed_training.plugins import pages
from tests.ui import records
from tests.ui.browser import Window
from tests.ui.conftest import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser

    from dev.airflow import AirflowStack
    from dev.rest import Run

PREFIX = "/distributed-training"
PATHS = [f"/{page}" for page in pages.PAGES] + [f"/static/{name}" for name in pages.ASSETS]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_served_to_who_has_not_logged_in(airflow: AirflowStack, path: str) -> None:
    assert httpx.get(f"{airflow.url}{PREFIX}{path}").status_code == 401


@pytest.mark.parametrize(
    "path",
    ["/static/../pages.py", "/static/%2e%2e/pages.py", "/static//etc/passwd", "/static/task.html",
     "/static/..%2f..%2fprovider.py", "/docs", "/openapi.json", "/other"],
)  # fmt: skip
def test_no_other_file_can_be_reached(airflow: AirflowStack, path: str) -> None:
    answer = airflow.api.http.get(f"{airflow.url}{PREFIX}{path}")
    assert answer.status_code == 404 or "<title>Airflow</title>" in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(airflow: AirflowStack, method: str) -> None:
    for path in ("/task", "/static/task.js"):
        assert airflow.api.http.request(method, f"{PREFIX}{path}").status_code == 405


def test_pages_forbid_all_scripts_but_ours(airflow: AirflowStack) -> None:
    policy = airflow.api.http.get(f"{PREFIX}/task").headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy


def test_a_browser_asks_for_a_file_only_once(airflow: AirflowStack) -> None:
    path = f"{PREFIX}/static/task.js"
    tag = airflow.api.http.get(path).headers["ETag"]
    assert airflow.api.http.get(path, headers={"If-None-Match": tag}).status_code == 304


def test_who_may_not_read_the_dag_sees_nothing_of_it(
    airflow: AirflowStack,
    browser: Browser,
    passwords: dict[str, str],
    told: Callable[..., Run],
) -> None:
    run = told(records.training("success"))
    window = Window(browser.new_context(), airflow.url)
    window.log_in(NOBODY, passwords[NOBODY])
    window.page.goto(f"{airflow.url}{PREFIX}/task?dag_id=told&run_id={run.run_id}&task_id=train")
    expect(window.page.get_by_role("alert")).to_contain_text("You may not read this DAG")
    expect(window.page.locator(".cell")).to_have_count(0)
    window.context.close()
