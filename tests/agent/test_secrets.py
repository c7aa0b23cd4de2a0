"""Secrets reach the ranks, and nothing else that anybody reads."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distributed_training.agent.host.masking import hider
from tests.agent.host import alive, exits, texts, until

if TYPE_CHECKING:
    from tests.agent.host import Job

SECRET = "hf_\"quoted' and $more"
LINES = "-----BEGIN KEY-----\nAAAAB3Nza\n-----END KEY-----"
SHOW = "import os; token = os.environ['HF_TOKEN']; print('it is', token)"


def lines_after(job: Job, program: str, secret: str = SECRET) -> str:
    """Return the journal of a rank that has a secret in its environment."""
    assert job.prepare(secrets=[secret])["ok"]
    job.start(processes=[job.rank(0, program, HF_TOKEN=secret)], ranks=[0])
    job.journal()
    return (job.path / "journal.jsonl").read_text()


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        (SECRET, f"token={SECRET}!"),
        (SECRET, f"environ({{'TOKEN': {SECRET!r}}})"),
        (SECRET, json.dumps({"token": SECRET})),
        (LINES, "AAAAB3Nza"),
        (LINES, repr(LINES)),
    ],
)
def test_a_secret_is_masked_however_it_is_quoted(secret: str, shown: str) -> None:
    """Case B98."""
    hidden = hider([secret])(shown)
    assert "***" in hidden
    assert "AAAA" not in hidden
    assert "quoted" not in hidden


def test_what_is_too_short_to_be_told_from_words_is_left_alone() -> None:
    assert hider(["ab", ""])("a table") == "a table"


def test_secrets_are_masked_in_lines_and_in_the_story_of_an_end(job: Job) -> None:
    """Case B98."""
    journal = lines_after(job, f"{SHOW}\nraise ValueError(token)")
    assert "quoted" not in journal
    records = [json.loads(line) for line in journal.splitlines()]
    assert texts(records)[0] == "it is ***"
    assert exits(records)[0]["traceback"][-1] == "ValueError: ***"
    assert SECRET in (job.path / "logs/rank-0.log").read_text()  # this user's own, as it was


def test_secrets_are_masked_in_what_a_failed_setup_printed(job: Job) -> None:
    refused = job.prepare(
        setup="echo $HF_TOKEN; exit 1", setup_env={"HF_TOKEN": SECRET}, secrets=[SECRET]
    )
    assert "***" in refused["error"]["message"]
    assert "quoted" not in json.dumps(refused)


def test_secrets_are_in_no_command_line_and_in_no_file(job: Job) -> None:
    """Case B98: the raw log alone has what the program itself has printed."""
    assert job.prepare(secrets=[SECRET])["ok"]
    job.start(processes=[job.rank(0, f"{SHOW}\nimport time; time.sleep(600)", HF_TOKEN=SECRET)])
    job.wait_for("it is ***")
    assert [p for p in Path("/proc").glob("[0-9]*/cmdline") if holds(p, SECRET)] == []
    files = [path for path in job.host.root.rglob("*") if path.is_file() and holds(path, SECRET)]
    assert files == [job.path / "logs/rank-0.log"]


def test_a_job_whose_agents_were_killed_tells_no_secret_although_they_alone_knew_it(
    job: Job,
) -> None:
    assert job.prepare(secrets=[SECRET])["ok"]
    job.start(processes=[job.rank(0, f"{SHOW}\nimport time; time.sleep(600)", HF_TOKEN=SECRET)])
    job.wait_for("it is ***")
    supervisor, watchdog = job.agents()
    os.kill(watchdog, signal.SIGSTOP)  # else it ends the job, and it knows the secret too
    for pid in (supervisor, watchdog):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(supervisor) and not alive(watchdog))
    ended = exits(job.journal())[0]
    assert ended["tail"] == ["(left out, since it may hold secrets)"]


def holds(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False
