"""Jobs on the shared test hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import JobsOn
    from tests.fleet import Fleet
    from tests.integration.jobs import Jobs


@pytest.fixture
def jobs(jobs_on: JobsOn, fleet: Fleet) -> Jobs:
    """Run jobs on the shared hosts, two slots each."""
    return jobs_on(fleet)
