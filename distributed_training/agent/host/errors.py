"""What is told to the caller when something cannot be done."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Json


class Refusal(Exception):
    """A request that cannot be met, as the caller will read it."""

    def __init__(self, kind: str, message: str, **fields: object) -> None:
        super().__init__(message)
        self.reply: Json = {"ok": False, "error": {"kind": kind, "message": message, **fields}}


def problem(what: str, why: str, do: str) -> Json:
    """Return one finding of the preflight."""
    return {"what": what, "why": why, "do": do}


def preflight_failed(problems: Sequence[Json]) -> Refusal:
    """Return the refusal that lists every finding of the preflight."""
    text = "; ".join(f"{each['what']}: {each['why']}" for each in problems)
    return Refusal("preflight", text, problems=list(problems))


def unwritable(path: str, error: OSError) -> Refusal:
    """Return the refusal for a folder that cannot be written."""
    why = error.strerror or str(error)
    do = "free space there or make it writable for this user, or set work_dir to another folder"
    return preflight_failed([problem(f"cannot write {error.filename or path}", why, do)])
