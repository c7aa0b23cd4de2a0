"""Whether systemd lets a job outlive the SSH session that started it."""

from __future__ import annotations

import os

from .errors import problem
from .facts import user_name
from .programs import output_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json


LOGIND = (
    ("KillUserProcesses", "kill its ranks (KillUserProcesses=yes)"),
    ("RemoveIPC", "empty its /dev/shm (RemoveIPC=yes)"),
)


def logind() -> Json | None:
    """See that systemd lets a job outlive the SSH session that started it."""
    user = user_name()
    if os.getuid() == 0 or not os.path.isdir("/run/systemd/system"):
        return None  # root is exempt from both settings
    if os.path.exists(f"/var/lib/systemd/linger/{user}"):
        return None
    told = output_of(["loginctl", "show-session", "-p", "KillUserProcesses", "-p", "RemoveIPC"])
    harms = [harm for setting, harm in LOGIND if f"{setting}=yes" in (told or "")]
    if not harms or output_of(["loginctl", "--no-ask-password", "enable-linger"]) is not None:
        return None
    why = f"once the last session of user {user} closes, it would {' and '.join(harms)}"
    do = f"let an administrator run once: sudo loginctl enable-linger {user}"
    return problem("systemd-logind would break the job", why, do)
