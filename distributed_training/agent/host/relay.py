"""What an mpirun executes in the place of ssh: its command takes our own way to the other host."""

from __future__ import annotations

import os
import sys

from . import bundle
from .node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


FAILED = 255  # as ssh ends when it cannot connect
FILE = "relay"  # in the head's folder
SCRIPT = '#!/bin/sh\nexec python3 -I {archive} relay "$@"\n'


def script(node: Node) -> bytes:
    """Return the program by which an mpirun that can execute but one file comes here."""
    import shlex

    return SCRIPT.format(archive=shlex.quote(node.at("agent.pyz"))).encode()


def relay(words: Sequence[str]) -> None:
    """Hand a command to the supervisor, wait for its end on the other host, and end like it.

    It depends on no connection: the supervisor answers once a watcher has told it.

    :param words: as for ssh: options without values, a host, and words for a shell there
    """
    words = list(words)
    while words and words[0] in ("-x", "-q"):
        words.pop(0)
    node = Node.of_folder(os.path.dirname(os.path.abspath(bundle.PATH)))
    answer = node.ask({"verb": "relay", "host": words[0], "command": " ".join(words[1:])})
    if answer is None or not answer["ok"]:
        why = answer["error"]["message"] if answer else "the agent of the head is gone"
        sys.stderr.write(f"{words[0]}: {why}\n")
        sys.exit(FAILED)
    sys.exit(answer["code"])
