"""What a watcher is told, beside the journal: how busy ranks are, and what they measure."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.agent.host import metrics
from distributed_training.agent.host.metrics import Metrics
from tests.agent.host import Job, Watcher

if TYPE_CHECKING:
    from pathlib import Path

BUSY = """
    import os, subprocess, sys
    block = bytearray(200 << 20)
    with open(os.environ["DT_METRICS_FILE"], "a") as file:
        print('{"loss": 0.5, "step": 1, "note": "warm"}', file=file)
        print('{"loss": 0.25, "step": 2}', file=file)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    while True:
        pass
"""
BUSY_LINE = len('{"loss": 0.5, "step": 1, "note": "warm"}\n')
SMI = """#!/bin/sh
case "$1" in
*utilization.gpu*) echo "GPU-1, 37, 1024, 4096"; echo "GPU-2, [N/A], 1, 2"; echo "a remark" ;;
esac
"""


def signs(watcher: Watcher, count: int) -> list[dict[str, Any]]:
    """Return the first signs of life, which are no part of the journal."""
    lines = (json.loads(line) for line in watcher.stdout)
    found = list(islice((line for line in lines if line["k"] == "alive"), count))
    watcher.cut()
    return found


def start_busy(job: Job) -> None:
    """Start a rank that has the variables of one."""
    job.prepare()
    own = {"DT_RANK": "0", "DT_METRICS_FILE": str(job.path / "metrics.jsonl")}
    job.start(processes=[job.rank(0, BUSY, **own)], ranks=[0])


def test_a_watcher_learns_how_busy_ranks_are_and_what_they_measure(job: Job) -> None:
    start_busy(job)
    watcher = Watcher(job, offset=0, owner="me")
    first, second = signs(watcher, 2)
    assert [row["loss"] for row in first["metrics"]["rows"]] == [0.5, 0.25]
    assert first["metrics"]["rows"][0] == {"loss": 0.5, "step": 1}
    assert second["metrics"]["rows"] == []
    busy, resident = second["usage"]["ranks"]["0"]
    assert 0 < busy < 3
    assert resident > 200 << 20
    used, total = second["usage"]["memory"]
    assert 0 < used < total
    assert 0 < second["usage"]["cpu"] <= 1


def test_what_a_short_job_has_measured_is_told_before_its_end(job: Job) -> None:
    job.prepare()
    own = {"DT_METRICS_FILE": str(job.path / "metrics.jsonl")}
    program = """open(__import__("os").environ["DT_METRICS_FILE"], "w").write('{"loss": 1}\\n')"""
    job.start(processes=[job.rank(0, program, **own)], ranks=[0])
    watcher = Watcher(job, offset=0, owner="me")
    told = list(map(json.loads, watcher.stdout))
    watcher.cut()
    assert told[-1]["k"] == "ended"
    rows = [row for each in told if each["k"] == "alive" for row in each["metrics"]["rows"]]
    assert rows == [{"loss": 1}]


def test_who_only_looks_on_is_not_told(job: Job) -> None:
    job.prepare()
    job.start("import time; time.sleep(600)")
    watcher = Watcher(job, offset=0)
    (sign,) = signs(watcher, 1)
    assert sign.keys() == {"k", "output"}


def test_a_watcher_that_takes_over_is_told_what_the_last_one_was_not(job: Job) -> None:
    start_busy(job)
    watcher = Watcher(job, offset=0, owner="me", metrics=BUSY_LINE)
    (sign,) = signs(watcher, 1)
    assert sign["metrics"]["rows"] == [{"loss": 0.25, "step": 2}]


def test_gpus_are_seen_from_one_look_to_the_next(job: Job, tmp_path: Path) -> None:
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    job.host.env["PATH"] = f"{program.parent}:/usr/bin:/bin"
    job.prepare()
    job.start("import time; time.sleep(600)")
    watcher = Watcher(job, offset=0, owner="me")
    _, sign = signs(watcher, 2)
    gpus = {"GPU-1": [0.37, 1 << 30, 4 << 30], "GPU-2": [0.0, 1 << 20, 2 << 20]}
    assert sign["usage"]["gpus"] == gpus


# --- a metrics file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def losses(told: dict[str, Any]) -> list[float]:
    return [row["loss"] for row in told["rows"]]


def test_a_file_that_is_not_there_yet_has_no_rows(file: Path) -> None:
    assert Metrics(str(file)).look()["rows"] == []


def test_a_line_that_is_being_written_comes_when_it_is_whole(file: Path) -> None:
    followed = Metrics(str(file))
    file.write_text('{"loss": 3}\n{"loss"')
    assert losses(followed.look()) == [3]
    with file.open("a") as more:
        more.write(": 2}\n")
    assert losses(followed.look()) == [2]


@pytest.mark.parametrize(
    "line", ["", "no json", "[1]", '{"loss": NaN}', '{"loss": "low"}', '{"loss": true}', "[" * 9999]
)
def test_what_is_no_number_is_left_out(file: Path, line: str) -> None:
    file.write_text(f'{line}\n{{"loss": 1}}\n')
    assert losses(Metrics(str(file)).look()) == [1]


def test_of_many_rows_some_are_left_out_and_never_the_last(file: Path) -> None:
    file.write_text("".join(f'{{"loss": {n}}}\n' for n in range(5001)))
    told = losses(Metrics(str(file)).look())
    assert told[-1] == 5000
    assert 100 <= len(told) <= metrics.ROWS


def test_a_line_without_an_end_does_not_stop_what_follows(file: Path) -> None:
    followed = Metrics(str(file))
    file.write_text("x" * metrics.CHUNK * 2 + '\n{"loss": 1}\n')
    assert [losses(followed.look()) for _ in range(3)][-1] == [1]


def test_a_file_that_is_written_anew_is_read_anew(file: Path) -> None:
    followed = Metrics(str(file))
    file.write_text('{"loss": 1}\n{"loss": 2}\n')
    followed.look()
    file.write_text('{"loss": 3}\n')
    assert losses(followed.look()) == [3]


def test_a_pipe_in_its_place_stops_nobody(file: Path) -> None:
    os.mkfifo(file)
    assert Metrics(str(file)).look()["rows"] == []
