"""A training as a user runs it: started from Airflow's own form, on real hosts, and looked at."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from dev.rest import ENDED, Run, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dev.airflow import AirflowStack
    from tests.fleet import Fleet
    from tests.ui.browser import Window

DAG = "train_digits"


@pytest.fixture
def start(airflow: AirflowStack, window: Window) -> Iterator[Callable[[int], Run]]:
    """Start the DAG from Airflow's form, for so many epochs."""
    airflow.api.wait_for_dag(DAG)
    runs: list[Run] = []

    def by_form(epochs: int) -> Run:
        known = runs_of(airflow)
        window.page.goto(f"{airflow.url}/dags/{DAG}")
        window.page.get_by_test_id("trigger-dag-button").click()
        dialog = window.page.get_by_role("dialog")
        # Where there was a run before, the button has a menu.
        item = window.page.get_by_role("menuitem", name="Trigger", exact=True)
        item.or_(dialog).first.wait_for()
        if item.count():
            item.click()
        dialog.get_by_role("button", name="Training").click()  # its section of the form
        field = dialog.locator("input[name=element_epochs], #element_epochs input").first
        field.fill(str(epochs))
        field.press("Tab")
        dialog.get_by_test_id("trigger-dag-submit").click()
        for _ in until(60, "the form has started no run"):
            if new := runs_of(airflow) - known:
                runs.append(Run(airflow.api, DAG, new.pop()))
                return runs[-1]
        raise AssertionError("until() raises at its end")

    yield by_form
    for run in runs:
        if run.state() not in ENDED:
            run.fail()


def runs_of(airflow: AirflowStack) -> set[str]:
    found = airflow.api.call("GET", f"/api/v2/dags/{DAG}/dagRuns")["dag_runs"]
    return {run["dag_run_id"] for run in found}


def test_a_training_shows_what_it_did(
    window: Window, start: Callable[[int], Run], shoot: Callable[[str], None]
) -> None:
    run = start(7)
    assert run.wait() == "success", run.story("train")
    trained = run.xcom("train")
    page = window.task(run)
    expect(page.locator("header .chip")).to_contain_text("success")
    expect(page.locator(".cell[data-state=ended]")).to_have_count(trained["world_size"])
    for host in trained["hosts"]:
        expect(page.get_by_label(f"Host {host}")).to_be_visible()
    shown = re.compile(rf"^loss: loss {re.escape(str(trained['result']['loss'][-1])[:4])}")
    expect(page.get_by_role("img", name=shown)).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("[rank ")
    page.get_by_role("tab", name="Environment").click()
    expect(page.get_by_role("row", name="WORLD_SIZE 4", exact=True)).to_be_visible()
    page.get_by_role("tab", name="Preflight and plan").click()
    expect(page.get_by_role("row", name=re.compile("^gpu2 "))).to_be_visible()
    shoot("real-success")


def test_a_rank_that_is_killed_is_named(
    window: Window, start: Callable[[int], Run], fleet: Fleet, shoot: Callable[[str], None]
) -> None:
    run = start(1_000_000)
    run.wait_for_line("train", "[rank 3 gpu2]", timeout=240)
    page = window.task(run)
    expect(page.locator(".cell[data-state=running]")).to_have_count(4)
    processes = fleet.hosts[1].processes()
    os.kill([p for p in processes if "train.py" in p.command][-1].outside, signal.SIGKILL)
    expect(window.frame.get_by_role("alert").first).to_contain_text("SIGKILL")
    expect(page.locator(".cell[data-state=failed_first]")).to_have_count(1)
    run.wait()
    shoot("real-failed")
