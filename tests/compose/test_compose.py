"""docker-compose.yml agrees with the repository, with Airflow and with our own connection.

No Docker is needed: what its containers run first is run here, for real.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.configuration import conf
from airflow.models.connection import Connection
from airflow.providers.celery.get_provider_info import get_provider_info as celery

from distributed_training.hooks.fleet import FleetHook
from tests.fleet import sshd

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
IN_IMAGE = "/opt/build/"  # where airflow.Dockerfile copies the checkout
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOSTS = {name for name, service in SERVICES.items() if service["image"].endswith("-host")}
IGNORED = [
    line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"
]


def words(service: dict[str, Any]) -> list[str]:
    """Return all that a container is told to run."""
    test = service.get("healthcheck", {}).get("test", [])
    parts: list[str] = [service.get("command", ""), *([test] if isinstance(test, str) else test)]
    return [word for part in parts for word in part.split()]


def mounts(service: dict[str, Any]) -> list[list[str]]:
    return [volume.split(":") for volume in service.get("volumes", ())]


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_is_made_of_exists(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert (ROOT / service["build"]["dockerfile"]).is_file()
    for source, *_ in mounts(service):
        assert source in COMPOSE["volumes"] or (source[0] == "." and (ROOT / source).is_dir())
    assert set(service.get("networks", ())) <= set(COMPOSE["networks"])
    assert set(service.get("depends_on", ())) <= set(SERVICES)
    for word in words(service):
        assert not word.startswith(IN_IMAGE) or (ROOT / word.removeprefix(IN_IMAGE)).is_file()


@pytest.mark.parametrize("file", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda file: file.stem)
def test_what_an_image_copies_is_sent_to_its_build(file: Path) -> None:
    copied = re.findall(r"^COPY (\S+) ", file.read_text(), re.MULTILINE)
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert source.partition("/")[0] not in IGNORED


def test_the_build_gets_all_that_the_wheel_holds() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["only-include"], "README.md", "LICENSE", "pyproject.toml", "docker"}
    assert not needed & set(IGNORED)
    assert ".*" in IGNORED  # .git, .venv and, above all, .env


def test_the_image_has_the_packages_of_the_group_executors() -> None:
    recipe = (DOCKER / "airflow.Dockerfile").read_text()
    named = re.search(r"requirements/dev\.txt \\\n(.+)", recipe)
    group = [re.split(r"[><=]", each)[0] for each in PROJECT["dependency-groups"]["executors"]]
    assert named
    assert named[1].split() == group


def test_every_setting_is_one_of_airflows() -> None:
    known = {
        (section, option)
        for config in (conf.configuration_description, celery()["config"])
        for section, content in config.items()
        for option in content["options"]
    }
    settings = [name for name in SERVICES["worker"]["environment"] if name.startswith("AIRFLOW__")]
    assert len(settings) > 10
    for name in settings:
        section, option = name.lower().split("__")[1:]
        if option.endswith("_cmd"):
            option = option.removesuffix("_cmd")
            assert (section, option) in conf.sensitive_config_values
        assert (section, option) in known, name


def test_every_port_is_of_this_machine_alone() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(ports) == {"api-server"}
    assert all(port.startswith("127.0.0.1:") for port in ports["api-server"])


def test_training_reaches_neither_database_nor_broker() -> None:
    for name in HOSTS:
        networks = set(SERVICES[name]["networks"])
        for other in ("postgres", "redis"):
            assert not networks & set(SERVICES[other]["networks"])
        assert not {source for source, *_ in mounts(SERVICES[name])} - {"host-keys"}


def test_what_env_may_choose_is_what_the_file_asks_for() -> None:
    asked = set(re.findall(r"\$\{(\w+)", TEXT))
    environments = [service.get("environment", {}) for service in SERVICES.values()]
    asked |= {name for each in environments for name, value in each.items() if value is None}
    offered = re.findall(r"^# (\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert set(offered) == asked
    git = ["git", "-C", str(ROOT), "check-ignore", "--quiet"]
    assert subprocess.run([*git, ".env"], check=False).returncode == 0
    assert subprocess.run([*git, ".env.example"], check=False).returncode == 1


def test_the_connection_is_a_fleet_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    (name, fields), *others = json.loads((DOCKER / "connections.json").read_text()).items()
    assert (name, others) == (FleetHook.default_conn_name, [])
    fields = {**fields, "extra": json.dumps(fields["extra"])}
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", Connection(name, **fields).get_uri())
    hook = FleetHook()
    assert {host.name for host in hook.fleet.hosts} == HOSTS
    assert hook.python is not None
    recipe = (DOCKER / "host.Dockerfile").read_text()
    assert f"venv {Path(hook.python).parents[1]}\n" in recipe
    assert f" {hook.settings.login} " in recipe


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first start makes."""
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder)
    return folder


def make_keys(folder: Path) -> None:
    command = ["sh", DOCKER / "keys.sh", folder, str(os.getuid())]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(command, env={"PATH": path}, check=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_keys_are_made_once(keys: Path) -> None:
    before = contents(keys)
    make_keys(keys)
    assert contents(keys) == before


def test_keys_lie_where_they_are_looked_for(keys: Path) -> None:
    extra = json.loads((DOCKER / "connections.json").read_text())["gpu_fleet_default"]["extra"]
    environment = {**SERVICES["worker"]["environment"], **SERVICES["postgres"]["environment"]}
    for_airflow = [extra["key_file"], extra["known_hosts"], environment["POSTGRES_PASSWORD_FILE"]]
    for_airflow += [environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD"].removeprefix("cat ")]
    for path in for_airflow:
        file = keys / "airflow" / Path(path).relative_to("/keys")
        assert file.read_text()
        assert file.stat().st_mode & 0o077 == 0
    url = (keys / "airflow/database_url").read_text()
    password = (keys / "airflow/database_password").read_text()
    # As it is: Airflow strips nothing from what a command prints.
    assert url == f"postgresql+psycopg2://airflow:{password}@postgres/{environment['POSTGRES_DB']}"
    named = (keys / "airflow/known_hosts").read_text().split()[0]
    assert set(named.split(",")) == HOSTS


def test_sshd_lets_in_one_user_by_key(keys: Path) -> None:
    ask = f"{sshd.program()} -T -f {DOCKER}/sshd_config -h {keys}/hosts/host_key"
    # It wants a folder that only a running system has, or a container.
    inside = f"mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec {ask}"
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", inside]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert settings["authenticationmethods"] == "publickey"
    assert settings["permitrootlogin"] == "no"
    assert settings["allowusers"] == "trainer"
    for path in (settings["authorizedkeysfile"], "/keys/host_key"):
        assert (keys / "hosts" / Path(path).relative_to("/keys")).is_file()


def test_the_first_start_prepares_airflow(tmp_path: Path) -> None:
    """A password from .env holds, whatever it is made of, until another one is given."""
    init(tmp_path, AIRFLOW_ADMIN_PASSWORD='it\'s "odd" $x \\')
    again = init(tmp_path)
    passwords = tmp_path / "simple_auth_manager_passwords.json.generated"
    assert json.loads(passwords.read_text()) == {"admin": 'it\'s "odd" $x \\'}
    assert passwords.stat().st_mode & 0o077 == 0
    assert "gpu_fleet_default: connection already exists" in again
    assert re.search(
        r"^fernet_key = \S{40,}$", (tmp_path / "airflow.cfg").read_text(), re.MULTILINE
    )


def init(home: Path, **more: str) -> str:
    """Run what the service `init` runs, on SQLite; return what it prints."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        **more,
    }
    command = ["sh", DOCKER / "init.sh"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
