"""What a caller needs to run the agent on a host: its source, the remote command and its input."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

# The source comes over stdin: nothing is installed on a host, and it runs the caller's version.
COMMAND = (
    "exec python3 -I -X utf8 -c 'import sys;"
    'sys.version_info<(3,8) and sys.exit("3.8 or newer is needed, python3 is "+sys.version);'
    "AGENT_SOURCE=sys.stdin.buffer.read(int(sys.stdin.buffer.readline()));"
    "exec(AGENT_SOURCE)'"
)


@cache
def source() -> bytes:
    """Return the agent's program text."""
    return files(__name__).joinpath("agent.py").read_bytes()


@cache
def site() -> str:
    """Return the program that runs before a rank's own, in the rank's Python."""
    return files(__name__).joinpath("sitecustomize.py").read_text()


def request(verb: str, marker: str, **fields: object) -> bytes:
    """Return what `COMMAND` reads from stdin: the program, then one request line."""
    line = json.dumps({"verb": verb, "marker": marker, **fields}, separators=(",", ":"))
    return b"%d\n%b%b\n" % (len(source()), source(), line.encode())
