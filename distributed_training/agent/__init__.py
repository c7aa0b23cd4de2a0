"""What a caller needs to run the agent on a host: an archive, the remote command and its input."""

from __future__ import annotations

import io
import json
import zipfile
from functools import cache
from pathlib import Path

_PROGRAM = Path(__file__).with_name("host")
_ENTRY = "from host.main import main\n\nmain()\n"
_NO_DATE = (1980, 1, 1, 0, 0, 0)

# The archive comes over stdin and is imported from memory: nothing is installed on a host, and it
# runs the caller's version. Pythons that were built for old systems cannot ask for memory.
COMMAND = (
    "exec python3 -I -X utf8 -c 'import os,sys;"
    'sys.version_info<(3,8) and sys.exit("3.8 or newer is needed, python3 is "+sys.version);'
    'AGENT_BUNDLE=open(os.memfd_create("agent"),"wb") if hasattr(os,"memfd_create")'
    ' else __import__("tempfile").TemporaryFile();'
    "AGENT_BUNDLE.write(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())));"
    "AGENT_BUNDLE.flush();"
    'sys.path.insert(0,"/proc/self/fd/%d"%AGENT_BUNDLE.fileno());'
    "from host.main import main;main()'"
)


@cache
def bundle() -> bytes:
    """Return the agent as a zip application, the same bytes for the same program."""
    names = sorted(path.relative_to(_PROGRAM.parent) for path in _PROGRAM.rglob("*.py"))
    files = {str(name): (_PROGRAM.parent / name).read_text() for name in names}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in {"__main__.py": _ENTRY, **files}.items():
            entry = zipfile.ZipInfo(name, _NO_DATE)
            archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@cache
def site() -> str:
    """Return the program that runs before a rank's own, in the rank's Python."""
    return Path(__file__).with_name("sitecustomize.py").read_text()


@cache
def function_caller() -> str:
    """Return the program of a rank that calls a function, for the rank's Python."""
    return Path(__file__).with_name("function.py").read_text()


def request(verb: str, marker: str, **fields: object) -> bytes:
    """Return what `COMMAND` reads from stdin: the program, then one request line."""
    line = json.dumps({"verb": verb, "marker": marker, **fields}, separators=(",", ":"))
    return b"%d\n%b%b\n" % (len(bundle()), bundle(), line.encode())
