"""What a preflight looks at, without a job."""

from __future__ import annotations

import os

from ..gpus import gpu_processes, gpus, in_use
from ..logind import logind
from ..programs import missing_python, versions
from ..slots import busy_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def examine(request: Json, call: Call) -> Json:
    """Look at what a preflight looks at, beyond an offer."""
    python = request.get("python") or "python3"
    home = os.path.expanduser("~")
    found = versions(python, dict(os.environ), home)
    free = {gpu["uuid"] for gpu in gpus()} - {slot[4:] for slot in busy_slots()}
    foreign = gpu_processes(free)
    missing = missing_python(python, dict(os.environ), home)
    findings = [missing, in_use(foreign) if foreign else None, logind()]
    return {"ok": True, "versions": found, "problems": [each for each in findings if each]}
