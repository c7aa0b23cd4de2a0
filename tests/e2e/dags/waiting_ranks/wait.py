"""Wait for ever, deaf to SIGTERM; the rank that is named fails instead, when all have begun."""

import itertools
import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
for second in itertools.count():
    print(f"second {second}", flush=True)
    time.sleep(1)
    if second == 2 and sys.argv[1] == os.environ["RANK"]:
        raise ValueError("no digit is like this one")
