"""Airflow's web page in a real browser, as a user sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, FrameLocator

    from dev.rest import Run

SCREENSHOTS = Path(__file__).parents[2] / "build/screenshots"
FLAGS = [
    "--no-sandbox",  # as root, in a network namespace or a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000  # milliseconds, for a busy machine
WIDE = {"width": 1400, "height": 1000}
PHONE = {"width": 390, "height": 844}


@dataclass
class Window:
    """A browser window of a user; what goes wrong in its pages is kept."""

    context: BrowserContext
    base: str
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Listen to what pages complain of."""
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.errors.append(message.text)

    def log_in(self, user: str, password: str) -> None:
        """Log in by Airflow's own form."""
        self.page.goto(f"{self.base}/auth/login/")
        self.page.fill("input[name=username]", user)
        self.page.fill("input[name=password]", password)
        self.page.click("button[type=submit]")
        self.page.wait_for_url(lambda url: "/auth/login" not in url)

    def dark(self, *, on: bool = True) -> None:
        """Choose Airflow's theme, as its menu does."""
        theme = "dark" if on else "light"
        self.page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
        self.page.reload()

    def task(self, run: Run, task: str = "train") -> FrameLocator:
        """Open the tab of a task, and return what is in its frame."""
        self.page.goto(f"{self._run(run)}/tasks/{task}/plugin/training")
        return self.frame

    def run(self, run: Run) -> FrameLocator:
        """Open the tab of a run, and return what is in its frame."""
        self.page.goto(f"{self._run(run)}/plugin/training-run")
        return self.frame

    def fleets(self) -> FrameLocator:
        """Open the page of the fleets, and return what is in its frame."""
        self.page.goto(f"{self.base}/plugin/fleets")
        return self.frame

    @property
    def frame(self) -> FrameLocator:
        """What is in the frame of the page."""
        return self.page.frame_locator("iframe")

    def _run(self, run: Run) -> str:
        return f"{self.base}/dags/{run.dag_id}/runs/{quote(run.run_id, safe='')}"
