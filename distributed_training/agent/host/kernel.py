"""What the kernel logs of killed processes and of GPUs."""

from __future__ import annotations

import contextlib
import os
import re

TYPE_CHECKING = False


KILLED = re.compile(r"Killed process (\d+)")
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")


class KernelLog:
    """What of interest the kernel has logged since the job began, if this user may read it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    def read(self) -> list[str]:
        """Return its lines about killed processes and GPUs."""
        record = b"?" if self._fd >= 0 else b""
        while record:
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # some records were overwritten before we came
                continue
            except OSError:
                break
            line = record.partition(b";")[2].partition(b"\n")[0].decode("utf-8", "replace")
            if KILLED.search(line) or XID.search(line):
                self.lines.append(line)
        return self.lines
