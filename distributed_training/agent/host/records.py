"""Records as they are written and sent: objects of JSON."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]


encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
