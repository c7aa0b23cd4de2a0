"""Every pair of hosts, connected."""

from __future__ import annotations

import json
import sys

from ..network import knock, listen
from ..records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


KNOCK_TIMEOUT = 5.0


def mesh(request: Json, call: Call) -> None:
    """Listen for peers, and knock at them as soon as the caller knows where they listen."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    listener = listen(0)

    def welcome() -> None:
        while True:
            listener.accept()[0].close()

    def fault(peer: tuple[str, int]) -> str | None:
        try:
            knock(peer[0], peer[1], KNOCK_TIMEOUT)
        except OSError as error:
            return error.strerror or str(error)
        return None

    threading.Thread(target=welcome, daemon=True).start()
    call.reply({"ok": True, "port": listener.getsockname()[1]})
    peers = json.loads(sys.stdin.buffer.readline() or b"[]")
    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        faults = list(pool.map(fault, peers))
    sys.stdout.buffer.write(encode(faults).encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()  # others may still knock here: until the caller has heard from all
