"""How a run is judged and shown; nothing is timed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from bench import report
from bench.measure import SIGN, Measurement, NotMeasured, Signs
from bench.report import PAGE, Machine, cells, onto_page, table
from bench.rows import Row, Target
from bench.stage import RANKS

if TYPE_CHECKING:
    from pathlib import Path


def row(target: Target) -> Row:
    return Row("start", "start of all", "`peer`", "torch", lambda _: 0, lambda _: 0, target)


def measured(target: Target) -> Measurement:
    """Medians of 2 s and 4 s, and pairs whose ratios are 0.25, 0.5 and 1."""
    return Measurement(row(target), (1.0, 2.0, 4.0), (4.0, 4.0, 4.0), (0.5, 1.5))


@pytest.mark.parametrize(
    ("target", "shown", "state"),
    [
        (Target(), "none", "ok"),
        (Target(ratio=0.5), "≤ 0.5 x", "ok"),
        (Target(ratio=0.4), "≤ 0.4 x", "short"),
        (Target(seconds=2), "≤ 2 s", "ok"),
        (Target(ratio=2, seconds=1.5), "≤ 2 x, ≤ 1.5 s", "short"),
        (Target(ratio=0.4, seconds=3), "≤ 0.4 x, ≤ 3 s", "short"),
    ],
)
def test_a_row_is_ok_if_all_of_its_target_is_reached(
    target: Target, shown: str, state: str
) -> None:
    assert cells(measured(target)) == (
        "start of all", "`peer`", "2.00", "4.00", "0.50 (0.25 to 1.00)", shown, state, "0.5 to 1.5",
    )  # fmt: skip


def test_the_table_goes_between_the_marks_of_the_page() -> None:
    page = PAGE.read_text()
    once = onto_page(page, table([measured(Target())]))
    assert "| start of all | `peer` | 2.00 |" in once
    assert once.startswith(page.partition("<!-- bench -->")[0])
    assert once.endswith(page.partition("<!-- end of bench -->")[2])
    again = onto_page(once, table([measured(Target(ratio=0.4))]))
    assert again.count("start of all") == 1
    assert "| short |" in again


def test_a_page_without_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="has lost the marks"):
        onto_page("# Performance\n", "a table")


def test_a_run_counts_only_if_every_rank_has_begun() -> None:
    signs = Signs()
    for rank in range(RANKS - 1):
        signs.take(f"[rank {rank} gpu1] here gpu1 {40 + rank} 17.25")
    signs.take("here gpu1 40 17.5")  # again
    signs.take("Traceback (most recent call last):")
    with pytest.raises(NotMeasured, match=rf"{RANKS - 1} of {RANKS} ranks began(.|\n)*Traceback"):
        signs.check()
    signs.take("here gpu4 7 18.5")
    signs.check()
    assert signs.settled.is_set()
    assert max(signs.times.values()) == 18.5


def test_a_run_is_kept_with_every_second_and_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Performance\n\n<!-- bench -->\nold\n<!-- end of bench -->\n")
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    machine = Machine("2030-02-01", "0123456789ab", 8, {"torch": "2.13.0"})
    file = report.keep([measured(Target(ratio=0.5))], machine)
    assert file == tmp_path / "results/2030-02-01.json"
    kept = json.loads(file.read_text())
    assert (kept["commit"], kept["cores"]) == ("0123456789ab", 8)
    assert (kept["rows"][0]["ours"], kept["rows"][0]["peer"]) == ([1, 2, 4], [4, 4, 4])
    told = "2030-02-01, commit 0123456789ab, 8 cores, torch 2.13.0. Medians of 3 pairs."
    assert told in page.read_text()
    assert "old" not in page.read_text()


def test_the_sign_of_a_rank_is_understood() -> None:
    signs = Signs()
    before = time.monotonic()
    program = f"import os, time\n{SIGN}\n"
    signs.take(subprocess.check_output([sys.executable, "-c", program], text=True).rstrip())
    (((host, _), when),) = signs.times.items()
    assert host == os.uname().nodename
    assert before <= when <= time.monotonic()
