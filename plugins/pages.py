"""Serves the pages and what they are made of; their data comes from Airflow's own REST interface.

So nothing here reads or changes anything, and a reader sees what Airflow lets this user see.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, Header, HTTPException, Response

STATIC = Path(__file__).parent / "static"
PAGES = ("task", "run", "fleets")
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain",
}
HEADERS = {
    # What a rank prints ends up in these pages: no script but ours can run there.
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-cache",  # asked for anew, and answered with 304 by the tag
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is served."""

    content: bytes
    media_type: str
    tag: str

    @classmethod
    def read(cls, path: Path) -> Asset:
        """Read a file of the package."""
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, TYPES[path.suffix], tag)

    def answer(self, known: str | None) -> Response:
        """Return the file, or that the browser has it.

        :param known: the tag of what the browser has
        """
        headers = {**HEADERS, "ETag": self.tag}
        if known == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


# Only what is listed here can be asked for: no path from a browser reaches the file system.
ASSETS = {
    path.relative_to(STATIC).as_posix(): Asset.read(path)
    for path in STATIC.rglob("*")
    if path.is_file()
}
Known = Annotated[str | None, Header(alias="If-None-Match")]

app = FastAPI(
    title="Distributed training",
    dependencies=[Depends(get_user)],
    # They would be served to anybody.
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)


@app.get("/static/{name:path}")
def static(name: str, known: Known = None) -> Response:
    """Return a script, a style or a picture."""
    if name not in ASSETS or name.endswith(".html"):
        raise HTTPException(404, "There is no such file")
    return ASSETS[name].answer(known)


@app.get("/{page}")
def page(page: str, known: Known = None) -> Response:
    """Return a page; its script reads from the address what it is about."""
    if page not in PAGES:
        raise HTTPException(404, f"There are the pages {', '.join(PAGES)}")
    return ASSETS[f"{page}.html"].answer(known)
