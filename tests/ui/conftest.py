"""Airflow with real hosts and a real browser, and a picture of all that is looked at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

from dev.airflow import AirflowStack
from dev.rest import ENDED
from dev.setup import hosts_python
from tests.ui import records
from tests.ui.browser import FLAGS, PATIENCE, SCREENSHOTS, WIDE, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from playwright.sync_api import Browser

    from dev.rest import Run
    from tests.fleet import Fleet

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
NOBODY = "nobody"  # may log in, and nothing else


@pytest.fixture(scope="session")
def airflow(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    """Airflow with the DAGs that people copy, and one that records what it is told to."""
    folder = tmp_path_factory.mktemp("airflow")
    for dags in (ROOT / "dags", Path(__file__).parent / "dags"):
        shutil.copytree(dags, folder / "dags", dirs_exist_ok=True)
    environment = {
        "AIRFLOW_CONN_GPU_FLEET_DEFAULT": fleet.connection_json(
            slots=2, python=str(hosts_python("torch"))
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"admin:admin,{NOBODY}:",
    }
    with AirflowStack(folder / "home", folder / "dags", environment, progress=print) as stack:
        yield stack


@pytest.fixture(scope="session")
def passwords(airflow: AirflowStack) -> dict[str, str]:
    """The password of each user."""
    path = airflow.home / "simple_auth_manager_passwords.json.generated"
    return dict(json.loads(path.read_text()))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser without a window on a screen."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def cookies(airflow: AirflowStack, browser: Browser, passwords: dict[str, str]) -> Any:
    """What a browser has of a user who has logged in."""
    window = Window(browser.new_context(), airflow.url)
    window.log_in("admin", passwords["admin"])
    state = window.context.storage_state()
    window.context.close()
    return state


@pytest.fixture
def window(airflow: AirflowStack, browser: Browser, cookies: Any) -> Iterator[Window]:
    """A window of a user who may see everything; no page may have complained at its end."""
    context = browser.new_context(viewport=WIDE, storage_state=cookies, accept_downloads=True)
    window = Window(context, airflow.url)
    yield window
    context.close()
    assert window.errors == []


@pytest.fixture
def shoot(window: Window) -> Callable[[str], None]:
    """Keep a picture of the window, in light and in dark."""

    def both(name: str) -> None:
        for theme in ("light", "dark"):
            window.dark(on=theme == "dark")
            window.frame.locator("main[aria-busy=false]").wait_for()
            window.page.wait_for_load_state("networkidle")
            window.page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")
        window.dark(on=False)

    return both


@pytest.fixture
def told(airflow: AirflowStack, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start a run whose task records a training; it goes on until the test ends if it must."""
    runs: list[Run] = []

    def start(training: dict[str, Any] | None, *, hold: bool = False, **params: Any) -> Run:
        conf = {"training": training, "until": str(tmp_path / "end") if hold else None, **params}
        if training and "plan" not in params:
            conf["plan"] = records.plan(training)
        run = airflow.api.trigger("told", conf)
        runs.append(run)
        if not hold:
            run.wait()
        return run

    yield start
    (tmp_path / "end").touch()
    for run in runs:
        if run.state() not in ENDED:
            run.wait()
