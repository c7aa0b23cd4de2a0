"""Count aloud, beside a record that does not pass through what is tested, and end as ordered."""

import fcntl
import itertools
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path

orders = json.loads(sys.argv[1])
rank = os.environ["RANK"]
own = orders.get("ranks", {}).get(rank, {})
me = uuid.uuid4().hex[:8]
if own.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

records = Path.home() / "records" / orders["key"]
records.mkdir(parents=True, exist_ok=True)
lock = (records / f"{rank}.lock").open("a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (records / f"{rank}.{me}.double").touch()

FLOOD = 20000  # lines without a pause
flood = range(own["floods_at"], own["floods_at"] + FLOOD) if "floods_at" in own else ()
seen = (records / f"{rank}.{me}.seen").open("a", buffering=1)
for number in itertools.count():
    if number == own.get("lines", orders.get("lines")):
        break
    # The record comes second: what it holds has been printed for sure.
    print(f"{me} {number}", flush=True)
    seen.write(f"{number} {time.time():.3f}\n")
    if number == own.get("fails_at"):
        sys.exit(7)
    if number not in flood:
        time.sleep(orders.get("pause", 0.25))
print(f"{me} done", flush=True)
seen.write(f"done {time.time():.3f}\n")
