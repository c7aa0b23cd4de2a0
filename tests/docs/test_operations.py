"""Every command of docs/operations.md and of the help is run on a fleet with a job on it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distributed_training.cli.main import EPILOG, main
from distributed_training.hooks.fleet import FleetHook
from distributed_training.plan import Program
from distributed_training.run.launch import launch
from tests.integration.jobs import Jobs
from tests.offers import spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed_training.run.agents import HostAgent
    from tests.fleet import Fleet

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
COMMAND = re.compile(r"^ *python -m distributed_training (.+)$", re.MULTILINE)
JOB = "retrain-train-1f0c2a9b7d-1"


def commands() -> list[list[str]]:
    """Return the words of each command, in the order of the page."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(words) for words in COMMAND.findall("\n".join([*blocks, EPILOG]))]


@pytest.fixture
def started(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the commands mean: a connection, a hostfile, a key, and a job that runs."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.setenv("AIRFLOW_CONN_GPU_FLEET_DEFAULT", fleet.connection_json(slots=2))
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text(fleet.hosts_text(slots=2))
    Path("id_ed25519").write_text(fleet.private_key)
    Path("id_ed25519").chmod(0o600)
    asked = spec(job_id=JOB, program=Program("command", ("sh", "-c", "echo here; sleep 600")))

    async def begin(agents: dict[str, HostAgent]) -> None:
        await launch(asked, list(agents.values()), owner="me")

    Jobs(FleetHook(), tmp_path).ask(begin)
    yield
    assert main(["undrain", "gpu1", "gpu2"]) == 0


@pytest.mark.usefixtures("started")
def test_every_command_shown_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for words in sorted(commands(), key=lambda words: "--follow" in words):  # until it is stopped
        if words != ["--help"]:
            assert main(words) == 0, words
            said[" ".join(words)] = capsys.readouterr().out
    assert said[f"logs {JOB} --rank 3"] == "[rank 3 gpu2] here\n"
    assert JOB in said["ps"]
    assert "jobs may use it again" in said["undrain gpu2"]


def test_all_verbs_are_shown() -> None:
    shown = {words[0] for words in commands()}
    assert shown == {"--help", "doctor", "ps", "logs", "stop", "gc", "drain", "undrain"}
