"""A secret in the environment of the ranks is seen by them alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.e2e.conftest import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dev.airflow import AirflowStack
    from dev.rest import Run
    from tests.fleet import Fleet

SHOWN = ("HF_TOKEN=***", "STORE=s3://me:***@host", "+ env")


def test_a_secret_is_masked_in_both_halves_of_the_log_and_kept_nowhere(
    airflow: AirflowStack, trigger: Callable[..., Run], fleet: Fleet, tmp_path: Path
) -> None:
    """Cases B98, B100: the script prints all that it knows, while watched by either process."""
    told, logs = tmp_path / "told", tmp_path / "logs"
    run = trigger("secret_env", told=str(told), logs=str(logs))
    run.wait_for_task("tell", "deferred")
    assert list(holding(airflow.home)) == []  # the trigger's row among it
    assert not [p.command for h in fleet.hosts for p in h.processes() if SECRET in p.command]
    assert run.wait() == "failed"
    log = run.log("tell")
    assert [text for text in SHOWN if not any(text in line for line in log)] == []
    assert any("again ***" in line for line in log)  # in the triggerer's half
    fields = run.task("tell")["rendered_fields"]
    assert "***" in str(fields["env"])
    assert SECRET not in "\n".join([*log, json.dumps(fields)])
    assert list(holding(airflow.home)) == []
    assert list(holding(logs)) == []
    assert sorted(path.name for path in logs.glob("*/rank-*")) == ["rank-0.log", "rank-1.log"]
    for host in fleet.hosts:
        found = host.exec(["grep", "-rlF", SECRET, ".", "/tmp"], check=False).stdout.split()
        assert [path for path in found if "/logs/rank-" not in path] == []
    error, where, _, status = told.read_text().split()  # once
    assert (error, status) == ("RankFailed", "3")
    assert where in ("gpu1", "gpu2")


def holding(folder: Path) -> Iterator[Path]:
    """Yield the files that hold the secret."""
    for path in folder.rglob("*"):
        if path.is_file() and SECRET.encode() in path.read_bytes():
            yield path
