"""A dozen faults in a row, as `make chaos` has hundreds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.__main__ import say
from tests.chaos.play import Player
from tests.chaos.scenario import rounds
from tests.chaos.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

SEED, FAULTS = 20, 12


@pytest.mark.timeout(600)
def test_a_dozen_faults_cost_no_line_and_leave_no_process(tmp_path: Path) -> None:
    with Stage(tmp_path, say) as stage:
        (part,) = rounds(SEED, FAULTS)
        findings = Player(stage, part, say, width=4).play()
    assert findings.clean, findings
