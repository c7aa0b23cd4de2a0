"""Frameworks above torch on real hosts: some rows of `make frameworks`."""

from __future__ import annotations

import pytest

from dev.setup import hosts_python
from frameworks.rows import ROWS
from frameworks.running import run

NAMES = ("Lightning", "Transformers", "Accelerate alone")
CHOSEN = [row for row in ROWS if row.name in NAMES and row.launcher == "process"]


@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: row.name)
def test_what_its_users_write_trains_or_is_refused(row, jobs, tmp_path):
    log = tmp_path / "task.log"
    outcome = run(row, hosts_python(row.environment), log)
    assert outcome.state == ("refused" if row.refusal else "ok"), outcome.told + log.read_text()
