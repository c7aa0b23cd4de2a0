"""Everything in README.md, CHANGELOG.md and docs/ that can be checked is checked.

A relative link must lead to a file, and its anchor to a heading. Fenced blocks, by language:

- ``python``: a complete program, which runs, or a DAG file, which Airflow loads; ``py`` marks a
  fragment, which must only be Python
- ``hosts``: a host list, which the fleet must understand
- ``json``: must be JSON
- ``bash``: ``make`` must name targets that exist, ``pip install`` our true name and extras
- any other language, or none: left alone
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from distributed_training.fleet import parse_hosts

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
MAKE = re.compile(r"^make +(.+)$", re.MULTILINE)
OURS = re.compile(r"\bpip install +\S*?([\w-]*distributed-training)(?:\[([\w,]+)\])?")
TARGET = re.compile(r"^([\w-]+):(?!=)", re.MULTILINE)

LOAD = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
print("\\n" + json.dumps({"errors": bag.import_errors, "dags": list(bag.dags)}))
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, and where it begins."""

    place: str
    language: str
    text: str


def blocks() -> list[Block]:
    """Return the fenced blocks of all pages."""
    return [
        Block(f"{page.relative_to(ROOT)}:{line(page, fence)}", fence[2], textwrap.dedent(fence[3]))
        for page in PAGES
        for fence in FENCE.finditer(page.read_text())
    ]


def line(page: Path, found: re.Match[str]) -> int:
    return page.read_text().count("\n", 0, found.start()) + 1


def links() -> list[tuple[Path, str]]:
    """Return the relative links of all pages, each with its page."""
    return [
        (page, target)
        for page in PAGES
        for target in LINK.findall(CODE.sub("code", FENCE.sub("", page.read_text())))
        if not re.match(r"[a-z]+:", target)
    ]


@pytest.mark.parametrize(
    ("page", "target"), links(), ids=lambda value: getattr(value, "name", value)
)
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    path, _, anchor = unquote(target).partition("#")
    file = page.parent / path if path else page
    assert file.resolve().is_relative_to(ROOT)
    assert file.exists(), f"{page.name} links to {target}, and there is no {path}"
    if anchor:
        assert anchor in anchors(file.read_text()), f"{file.name} has no heading for #{anchor}"


@pytest.mark.parametrize("block", blocks(), ids=lambda block: f"{block.place}-{block.language}")
def test_a_block_is_right(block: Block, tmp_path: Path) -> None:
    match block.language:
        case "python":
            run(block.text, tmp_path)
        case "py":
            ast.parse(block.text)
        case "hosts":
            assert parse_hosts(block.text)
        case "json":
            json.loads(block.text)
        case "bash":
            check_commands(block.text)


@pytest.mark.parametrize("dependency", PROJECT["dependencies"])
def test_every_dependency_is_explained(dependency: str) -> None:
    assert f"`{dependency}`" in (ROOT / "docs" / "dependencies.md").read_text()


def run(program: str, home: Path) -> None:
    """Run a program, or let Airflow load a DAG file, where this package is installed."""
    file = home / "block.py"
    file.write_text(program)
    if not re.search(r"@dag\b|\bDAG\(", program):
        python(home, str(file))
        return
    bag = json.loads(python(home, "-c", LOAD, str(file)).splitlines()[-1])
    assert not bag["errors"], "\n".join(bag["errors"].values())
    assert bag["dags"]


def python(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=home,
        env={**os.environ, "AIRFLOW_HOME": str(home / "airflow"), "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_commands(script: str) -> None:
    for arguments in MAKE.findall(script):
        wanted = {word for word in arguments.partition("#")[0].split() if "=" not in word}
        assert wanted <= set(TARGET.findall((ROOT / "Makefile").read_text()))
    for name, extras in OURS.findall(script):
        assert name == PROJECT["name"]
        assert set(extras.split(",")) - {""} <= set(PROJECT["optional-dependencies"])


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found: list[str] = []
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{slug}-{count}" if (count := found.count(slug)) else slug)
    return set(found)
