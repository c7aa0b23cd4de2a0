"""A real Airflow of its own for the demo and the tests, on SQLite and LocalExecutor if not told."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

import httpx

from dev.programs import Program, ProgramFailed
from dev.rest import AirflowError, Api, Progress, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SETTINGS = {
    "CORE__LOAD_EXAMPLES": "False",
    "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "CORE__PARALLELISM": "4",  # idle workers of LocalExecutor cost memory
    "CORE__TEST_CONNECTION": "Enabled",
    "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
    # An event that follows the deferral too soon fails the task (apache/airflow#72716); this helps.
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
}
# What `airflow` is told. The API server comes first and goes last: tasks report to it.
COMPONENTS = {
    "api-server": ["api-server", "--host", "127.0.0.1", "--workers", "1", "--port"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
HEALTH = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}


def free_port(preferred: int | None = None) -> int:
    """Return the preferred port of the loopback address if it is free, else one that is."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port or 0))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AirflowError("no port of 127.0.0.1 is free; end programs that listen there")


def occupied(port: int) -> bool:
    """Tell whether somebody listens at this port of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class AirflowStack:
    """API server, scheduler, DAG processor, triggerer and more, with a home folder of their own.

    :param home: its AIRFLOW_HOME, made if absent
    :param dags: its DAG folder
    :param environment: more variables for all of its processes, such as connections
    :param commands: what `airflow` is told, for each of its processes by name
    :param port: where the web page listens on the loopback address (a free port)
    :param progress: told what is being done
    """

    home: Path
    dags: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Sequence[str]] = field(default_factory=lambda: COMPONENTS)
    port: int = field(default_factory=free_port)
    progress: Progress = lambda _: None

    @property
    def url(self) -> str:
        """Return where the web page is."""
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def variables(self) -> dict[str, str]:
        """Return the environment of its processes: ours without the settings of another Airflow."""
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW_", "_AIRFLOW"))
        }
        settings = {
            **SETTINGS,
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "API__BASE_URL": self.url,
            "API__PORT": str(self.port),
        }
        prefixed = {f"AIRFLOW__{name}": value for name, value in settings.items()}
        home = {"AIRFLOW_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        return {**inherited, **home, **prefixed, **self.environment}

    @cached_property
    def components(self) -> dict[str, Program]:
        """Return Airflow's processes by name."""
        ports = {"api-server": [str(self.port)]}
        return {
            name: Program(
                f"airflow {name}",
                [sys.executable, "-m", "airflow", *arguments, *ports.get(name, ())],
                self.home / f"{name}.log",
                self.variables,
            )
            for name, arguments in self.commands.items()
        }

    def start(self) -> None:
        """Make the database, start everything, and return when all of it is healthy."""
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            self.progress("Airflow: making its database")
            self._migrate()
            try:
                self._launch()
            except ProgramFailed:
                if not occupied(self.port):
                    raise
                self._move()
                self._launch()
        except BaseException:
            self.stop()
            raise
        self.progress(f"Airflow: healthy, {self.url}")

    def _move(self) -> None:
        self.progress(f"Airflow: port {self.port} was taken meanwhile, using another one")
        self.stop()
        self.port = free_port()
        del self.variables, self.components

    def _launch(self) -> None:
        self.progress("Airflow: starting " + ", ".join(self.components))
        for program in self.components.values():
            program.start()
        self.wait_until_healthy()

    def _migrate(self) -> None:
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        log = self.home / "migrate.log"
        Program("airflow db migrate", command, log, self.variables).run(timeout=120)

    def wait_until_healthy(self, timeout: float = 120) -> None:
        """Return when every component that was started reports itself healthy."""
        for _ in until(timeout, "Airflow did not become healthy"):
            for program in self.components.values():
                program.check()
            if not self.unhealthy():
                return

    def unhealthy(self) -> list[str]:
        """Return the names of running components that do not say that they are well."""
        if not self.components["api-server"].listens(self.port):
            return ["api-server"]
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=10).json()
        except (httpx.TransportError, json.JSONDecodeError):
            return ["api-server"]
        return [
            name
            for name, key in HEALTH.items()
            if self.components[name].process and health[key]["status"] != "healthy"
        ]

    def stop(self, grace: float = 5) -> None:
        """End everything, the API server last; return when nothing of it lives."""
        if any(program.process for program in self.components.values()):
            self.progress("Airflow: stopping")
        first, *others = self.components.values()
        for program in others:
            program.ask_to_end()
        for program in (*others, first):
            program.end(grace)

    def kill(self, name: str) -> None:
        """Kill one component and its children, as a crash would."""
        self.components[name].kill()

    def restart(self, name: str, grace: float = 5) -> None:
        """End one component if it lives, and start it again."""
        self.components[name].end(grace)
        self.components[name].start()

    @cached_property
    def login(self) -> tuple[str, str]:
        """Return user and password of the web page."""
        path = self.home / "simple_auth_manager_passwords.json.generated"
        [(user, password), *_] = json.loads(path.read_text()).items()
        return user, password

    @cached_property
    def api(self) -> Api:
        """Return the REST interface."""
        return Api.login(self.url, *self.login)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
