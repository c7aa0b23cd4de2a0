"""Wait for ever, deaf to SIGTERM; the rank that is named fails instead, when all have begun."""

import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("waits", flush=True)
if sys.argv[1] == os.environ["RANK"]:
    time.sleep(2)
    raise ValueError("no digit is like this one")
while True:
    time.sleep(60)
