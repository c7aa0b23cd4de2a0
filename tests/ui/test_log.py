"""The log viewer: what ranks print, however much and whatever it is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.ui import records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from dev.airflow import AirflowStack
    from dev.rest import Run
    from tests.ui.browser import Window

    Told = Callable[..., Run]

MANY = 500_000


def test_nothing_that_a_rank_prints_runs_in_the_page(
    window: Window, told: Told, shoot: Callable[[str], None]
) -> None:
    record = records.training("success", message="<img src=x onerror='globalThis.broken = 1'>")
    verdict = {"kind": "RankFailed", "message": "<script>globalThis.broken = 1</script>\n<b>x</b>"}
    record |= {"verdict": {**verdict, "host": "<i>gpu1</i>", "rank": 0}}
    window.task(told(record, lines=records.HOSTILE))
    log = window.frame.get_by_role("log")
    expect(log).to_contain_text("<script>globalThis.broken = true</script>")
    expect(log).to_contain_text("red andplain")
    expect(window.frame.locator("script")).to_have_count(2)
    assert window.frame.locator("body").evaluate("() => globalThis.broken") is None
    shoot("hostile-log")


def test_search_ranks_and_download(window: Window, told: Told) -> None:
    record = records.failed()
    page = window.task(told(record, lines=records.lines(record), fail=True))
    status = page.get_by_role("status")
    expect(status).to_contain_text(re.compile(r"^\d+ lines$"))
    page.get_by_label("Ranks to show, as in 0,3-5").fill("1-2")
    expect(status).to_contain_text("40 of")
    page.get_by_label("Search in the lines").fill("step 10 ")
    expect(status).to_contain_text("2 of")
    with window.page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    saved = download.value.path().read_text().splitlines()
    assert [re.match(r"\[rank (\d) gpu\d\] step 10 ", line)[1] for line in saved] == ["1", "2"]
    page.get_by_title("Show it among its neighbours").first.click()
    expect(page.locator(".line.marked")).to_contain_text("step 10 ")
    expect(page.get_by_role("log")).to_contain_text("[rank 0 gpu1]")


def test_new_lines_are_followed(window: Window, told: Told, tmp_path: Path) -> None:
    run = told(records.training("running"), hold=True, lines=["[rank 0 gpu1] first"])
    run.wait_for_line("train", "first")
    page = window.task(run)
    expect(page.get_by_role("log")).to_contain_text("first")
    expect(page.get_by_role("status")).to_contain_text("so far")
    (tmp_path / "end").touch()
    run.wait()
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"\d+ lines$"))


def test_half_a_million_lines(airflow: AirflowStack, window: Window, told: Told) -> None:
    run = told(records.training("success", each=4))
    (log,) = (airflow.home / "logs").rglob(f"*run_id={run.run_id}/task_id=train/attempt=1.log")
    with log.open("a") as file:
        file.writelines(_entry(n) for n in range(MANY))
    page = window.task(run)
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"^500,\d+ lines$"))
    expect(page.get_by_role("log")).to_contain_text(f"step {MANY - 1}")
    assert page.locator(".line").count() < 100
    page.get_by_label("Search in the lines").fill(f"step {MANY // 2}")
    expect(page.get_by_role("status")).to_contain_text("1 of 500,")
    expect(page.get_by_role("log")).to_contain_text(f"[rank 0 gpu1] step {MANY // 2}")


def _entry(number: int) -> str:
    line: dict[str, Any] = {
        "timestamp": f"2030-01-01T{number // 36000:02}:{number // 600 % 60:02}:00Z",
        "event": f"[rank {number % 8} gpu{1 + number % 8 // 4}] step {number}",
        "level": "info",
        "logger": "training",
    }
    return json.dumps(line) + "\n"
