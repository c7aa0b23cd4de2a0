"""The pages of the plugin, without an Airflow around them: `tests/ui` has the rest."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from distributed_training.plugins import pages
from distributed_training.plugins.training import TrainingPlugin

PATHS = [f"/{page}" for page in pages.PAGES] + [f"/static/{name}" for name in pages.ASSETS]
IMPORT = re.compile(r"""(?:from|import) "\./([\w.]+)";""")
REFERENCE = re.compile(r"""(?:src|href)="static/([\w./]+)\"""")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A browser of somebody who has logged in."""
    monkeypatch.setitem(pages.app.dependency_overrides, get_user, lambda: "ann")
    return TestClient(pages.app)


def test_the_plugin_is_light_to_import() -> None:
    code = (
        "import sys, airflow.plugins_manager; before = set(sys.modules)\n"
        "import distributed_training.plugins.training\n"
        "print([new for new in set(sys.modules) - before if not new.startswith('distributed_')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_served_to_who_has_not_logged_in(path: str) -> None:
    assert TestClient(pages.app).get(path).status_code == 401


@pytest.mark.parametrize("view", TrainingPlugin.external_views, ids=lambda view: view["url_route"])
def test_every_view_leads_to_a_page(client: TestClient, view: dict[str, str]) -> None:
    path = view["href"].removeprefix("distributed-training").partition("?")[0]
    assert client.get(path).status_code == 200
    for icon in ("icon", "icon_dark_mode"):
        assert client.get(view[icon].removeprefix("distributed-training")).status_code == 200


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_holds_no_script_and_refers_to_what_there_is(client: TestClient, page: str) -> None:
    answer = client.get(f"/{page}")
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert not re.search(r"<script[^>]*>[^<]|style=|https?:", answer.text)
    assert REFERENCE.findall(answer.text)
    for name in REFERENCE.findall(answer.text):
        assert client.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize("name", [name for name in pages.ASSETS if re.fullmatch(r"\w+\.js", name)])
def test_a_module_imports_what_there_is_and_writes_no_html(name: str) -> None:
    text = pages.ASSETS[name].content.decode()
    assert {f"{module}" for module in IMPORT.findall(text)} <= pages.ASSETS.keys()
    assert not re.search(
        r"(inner|outer)HTML\s*=[^=]|insertAdjacentHTML|document\.write|eval\(", text
    )
    assert not re.search(r"""fetch\(["'`]https?:""", text)


@pytest.mark.parametrize(
    "path",
    ["/static/../pages.py", "/static/..%2fpages.py", "/static//etc/passwd", "/static/task.html",
     "/docs", "/redoc", "/openapi.json", "/other"],
)  # fmt: skip
def test_nothing_else_can_be_reached(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    assert {client.request(method, path).status_code for path in PATHS} == {405}


def test_a_browser_asks_for_a_file_only_once(client: TestClient) -> None:
    tag = client.get("/static/task.js").headers["ETag"]
    again = client.get("/static/task.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
