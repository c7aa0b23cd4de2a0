"""Wait for ever, deaf to SIGTERM, with a child; the rank that is named fails after a while."""

import itertools
import os
import signal
import subprocess
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
for second in itertools.count():
    print(f"second {second}", flush=True)
    time.sleep(1)
    if second == 2 and sys.argv[1] == os.environ["RANK"]:
        raise ValueError("no digit is like this one")
