"""What a preflight looks at, without a job."""

from __future__ import annotations

import os

from ..gpus import gpu_processes, gpus, in_use
from ..logind import logind
from ..programs import versions
from ..slots import busy_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def examine(request: Json, call: Call) -> Json:
    """Look at what a preflight looks at, beyond an offer."""
    python = request.get("python") or "python3"
    found = versions(python, dict(os.environ), os.path.expanduser("~"))
    free = {gpu["uuid"] for gpu in gpus()} - {slot[4:] for slot in busy_slots()}
    foreign = gpu_processes(free)
    findings = [in_use(foreign) if foreign else None, logind()]
    return {"ok": True, "versions": found, "problems": [each for each in findings if each]}
