"""Ask Airflow whether one of its parts is well: `healthy.py scheduler`; its exit status tells.

`airflow jobs check` tells the same, and takes seconds of a core each time.
"""

from __future__ import annotations

import json
import sys
from urllib.request import urlopen

URL = "http://api-server:8080/api/v2/monitor/health"

with urlopen(URL, timeout=10) as answer:
    status = json.load(answer)[sys.argv[1]]["status"]
if status != "healthy":
    sys.exit(f"{sys.argv[1]} is {status}")
