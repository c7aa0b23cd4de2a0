"""The page of a training, in all states of a job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.ui import records
from tests.ui.browser import PHONE, SCREENSHOTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dev.rest import Run
    from tests.ui.browser import Window

    Told = Callable[..., Run]
    Shoot = Callable[[str], None]


@pytest.fixture
def failed(told: Told) -> Run:
    """A training whose rank 3 has failed."""
    record = records.failed()
    return told(record, lines=records.lines(record), fail=True)


@pytest.mark.parametrize(
    ("record", "word"),
    [
        pytest.param(records.waiting(), "waiting for slots", id="waiting"),
        pytest.param(records.training("preparing"), "preparing", id="preparing"),
        pytest.param(records.measured(records.training("running")), "running", id="running"),
    ],
)
def test_a_training_that_goes_on(
    window: Window, told: Told, shoot: Shoot, record: dict[str, Any], word: str
) -> None:
    run = told(record, hold=True, lines=records.lines(record))
    run.wait_for_task("train", "running")
    page = window.task(run)
    expect(page.locator("header .chip")).to_contain_text(word)
    expect(page.locator("header")).to_contain_text("elapsed")
    shoot(f"training-{record['state']}")


@pytest.mark.parametrize("state", ["success", "stopped"])
def test_a_training_that_has_ended(window: Window, told: Told, shoot: Shoot, state: str) -> None:
    record = records.measured(records.training(state))
    page = window.task(told(record, lines=records.lines(record), fail=state == "stopped"))
    expect(page.locator("header .chip")).to_contain_text(state)
    expect(page.locator(".verdict")).to_have_count(0)
    shoot(f"training-{state}")


def test_a_failure_leads_to_the_lines_of_the_rank(
    window: Window, failed: Run, shoot: Shoot
) -> None:
    page = window.task(failed)
    expect(page.get_by_role("alert").first).to_contain_text("illegal memory access")
    shoot("training-failed")
    window.frame.get_by_role("button", name="Go to the lines of rank 3").click()
    log = window.frame.get_by_role("log")
    expect(log).to_contain_text("Traceback (most recent call last)")
    expect(log).not_to_contain_text("[rank 0")
    expect(window.frame.get_by_role("button", name=re.compile("^rank 3,"))).to_have_attribute(
        "aria-pressed", "true"
    )


def test_within_two_clicks_from_the_run(window: Window, failed: Run, shoot: Shoot) -> None:
    page = window.run(failed)
    expect(page.get_by_role("alert")).to_contain_text("Traceback")
    shoot("run-failed")
    window.frame.get_by_role("link", name="train").click()
    window.page.wait_for_url("**/plugin/training")
    expect(window.frame.get_by_role("alert").first).to_contain_text("Traceback")


def test_sixty_four_ranks(window: Window, told: Told, shoot: Shoot) -> None:
    record = records.big()
    run = told(record, hold=True, lines=records.lines(record, 5))
    run.wait_for_task("train", "running")
    page = window.task(run)
    expect(page.locator(".cell")).to_have_count(64)
    for state in ("running", "ended", "failed_first", "failed", "stopped", "waiting", "lost"):
        wanted = sum(rank["state"] == state for rank in record["ranks"])
        expect(page.locator(f".cell[data-state={state}]")).to_have_count(wanted)
    expect(page.get_by_label("Host gpu8")).to_contain_text("no answer for 600 s")
    shoot("training-64-ranks")


def test_the_details(window: Window, failed: Run) -> None:
    page = window.task(failed)
    page.get_by_role("tab", name="Environment").click()
    page.get_by_label("Rank", exact=True).select_option("2")
    expect(page.get_by_role("row", name="RANK 2", exact=True)).to_be_visible()
    expect(page.get_by_role("row", name="HF_TOKEN ***")).to_be_visible()
    page.get_by_role("tab", name="Preflight and plan").click()
    expect(page.get_by_role("row", name=re.compile("gpu2 3.11.2"))).to_be_visible()
    page.get_by_role("tab", name="Utilisation").click()
    expect(page.get_by_role("img", name=re.compile("GPU busy")).first).to_be_visible()
    page.get_by_label("Utilisation of gpu1").screenshot(path=SCREENSHOTS / "utilisation-light.png")
    expect(page.get_by_role("img", name=re.compile("^loss: train.loss"))).to_be_visible()
    expect(page.get_by_role("link", name="MLflow")).to_have_attribute("href", re.compile("^https"))
    expect(page.get_by_role("link", name="Bad")).to_have_count(0)


def test_curves_tell_values_where_the_mouse_is(window: Window, failed: Run) -> None:
    page = window.task(failed)
    chart = page.get_by_role("img", name=re.compile("^accuracy"))
    chart.locator(".u-over").hover()
    expect(chart.locator(".u-legend")).to_contain_text(re.compile(r"accuracy:?\s*0\.\d"))
    page.get_by_label("Over what").select_option("time")
    chart.locator(".u-over").hover()
    expect(chart.locator(".u-legend")).to_contain_text(re.compile(r"time:?\s*\d+ min"))
    page.get_by_label("Smoothing").fill("0.9")
    expect(chart.locator(".u-legend")).to_contain_text("accuracy (raw)")


def test_a_phone(window: Window, failed: Run, shoot: Shoot) -> None:
    window.page.set_viewport_size(PHONE)
    page = window.task(failed)
    expect(page.get_by_role("alert").first).to_be_visible()
    width = page.locator("html").evaluate("html => html.scrollWidth - html.clientWidth")
    assert width == 0, "the page must not scroll sideways"
    shoot("training-phone")


def test_the_keyboard_alone(window: Window, failed: Run) -> None:
    page = window.task(failed)
    page.locator(".cell[tabindex='0']").focus()
    window.page.keyboard.press("ArrowRight")
    window.page.keyboard.press("Enter")
    expect(page.get_by_label("Ranks to show, as in 0,3-5")).to_have_value("1")
    page.get_by_role("tab", name="Log").focus()
    window.page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Utilisation")).to_be_focused()
    expect(page.get_by_role("tab", name="Utilisation")).to_have_attribute("aria-selected", "true")


def test_a_task_that_is_no_training(window: Window, told: Told, shoot: Shoot) -> None:
    page = window.task(told(None), "other")
    expect(page.get_by_role("heading")).to_have_text("No training here")
    shoot("no-training")
