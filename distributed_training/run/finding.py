"""What is wrong with a host, found before a rank starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be: where, what, why, and what to do about it.

    ``check`` names what was looked at. A failure refuses a launch, a warning is told.
    """

    host: str
    check: str
    severity: Severity
    why: str
    do: str = ""

    def __str__(self) -> str:
        """Return the finding as a sentence."""
        return f"{self.host}: {self.check}: {self.why}" + (f"; {self.do}" if self.do else "")
