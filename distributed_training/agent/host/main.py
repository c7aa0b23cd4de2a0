"""A request is served, or a rank run below its launcher."""

from __future__ import annotations

import sys
from importlib import import_module

from .call import Call
from .errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .records import Json

VERBS = (
    "offer",
    "examine",
    "mesh",
    "mark",
    "put_source",
    "prepare",
    "start",
    "attach",
    "reach",
    "release",
    "shrink",
    "relay",
    "relayed",
    "stop",
    "status",
    "dump",
    "fetch",
    "result",
    "gc",
)


def serve() -> None:
    """Answer the request on stdin."""
    call = Call(sys.stdin.buffer.readline())
    try:
        request = call.parse()
        reply = answer_to(request.get("verb"))(request, call)
        if reply is not None:
            call.reply(reply)
    except Refusal as refusal:
        call.reply(refusal.reply)
    except Exception:  # the caller is elsewhere: a reply is the only way to tell it
        import traceback

        if call.answered:
            raise

        call.reply(Refusal("internal", traceback.format_exc()).reply)


def answer_to(verb: object) -> Callable[[Json, Call], Json | None]:
    """Return what answers a verb, from the module of its name: no other verb's is loaded."""
    if verb not in VERBS:
        raise Refusal("unknown_verb", f"unknown verb {verb!r}; known: {', '.join(VERBS)}")
    found: Callable[[Json, Call], Json | None] = getattr(
        import_module(f".verbs.{verb}", __package__), verb
    )
    return found


def main() -> None:
    """Serve a request, or stand between a launcher and what it starts."""
    words = sys.argv[1:]
    if words[:1] == ["relay"]:
        from .relay import relay

        return relay(words[1:])
    if words[:1] == ["ray"]:
        from .ray_rank import run

        return run(words[1:])
    if words[:1] != ["rank"]:
        return serve()
    if words[1:]:
        from .rank import below_torchrun

        wrapper = below_torchrun(words[1:])
    else:
        from .mpi_rank import below_mpirun

        wrapper = below_mpirun()
    return wrapper.finish(wrapper.run())
