"""Signals to the supervisor, as something to wait for."""

from __future__ import annotations

import contextlib
import os
import signal

TYPE_CHECKING = False


class Wakeups:
    """Signals to this process, as bytes in a pipe that can be waited for."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # What a shell starts in the background ignores it, and ranks would inherit that.
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def read(self) -> set[int]:
        """Return the signals that came, children's ends left out."""
        with contextlib.suppress(BlockingIOError):
            return set(os.read(self.fd, 4096)) - {signal.SIGCHLD}
        return set()

    @staticmethod
    def forget() -> None:
        """Give a forked child the signals of an ordinary program."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
