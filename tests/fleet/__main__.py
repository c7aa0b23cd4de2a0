"""Test hosts from the shell: `python -m tests.fleet up|down|status`, and what may befall a host."""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.fleet import FaultUnavailable, Fleet, MissingPrivilege, record

# verb: what follows the host's name, and how each is read
FAULTS: dict[str, dict[str, type]] = {
    "power-cut": {},
    "power-on": {},
    "cut-cable": {},
    "plug-cable": {},
    "drop-connections": {},
    "freeze": {},
    "thaw": {},
    "clock-offset": {"seconds": float},
    "add-interface": {"interface": str, "address": str},
    "add-nic": {"interface": str, "address": str},
    "noisy-bashrc": {},
    "set-password": {"password": str},
    "forget-names": {},
}


def arguments() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fleet", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    up = verbs.add_parser("up", help="make hosts that stand until `down`")
    up.add_argument("number", nargs="?", type=int, default=2)
    up.add_argument("--kind", choices=("namespaces", "loopback"), help="default: what can be had")
    down = verbs.add_parser("down", help="end a fleet")
    down.add_argument(
        "--all", action="store_true", help="end every fleet of this user, also a running test's"
    )
    status = verbs.add_parser("status", help="show every fleet that stands")
    for verb in (down, status):
        verb.add_argument("--fleet", metavar="ID")
    connection = verbs.add_parser("connection", help="print the Airflow connection as JSON")
    restart = verbs.add_parser("restart-sshd", help="e.g. gpu1 MaxStartups=2:100:2 Port=2222")
    restart.add_argument("host")
    restart.add_argument("options", nargs="*", metavar="OPTION=VALUE")
    execute = verbs.add_parser("exec", help="run a program on a host, without SSH")
    execute.add_argument("--user")
    login = verbs.add_parser("ssh", help="log in to a host, or run a command there")
    for verb in (execute, login):
        verb.add_argument("host")
        verb.add_argument("argv", nargs=argparse.REMAINDER)
    for verb in (connection, restart, execute, login):
        verb.add_argument("--fleet", metavar="ID", help="default: the only one that stands")
    _add_faults(verbs)
    return parser


def _add_faults(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, values in FAULTS.items():
        fault = verbs.add_parser(name)
        fault.add_argument("--fleet", metavar="ID", help="default: the only one that stands")
        fault.add_argument("host")
        for value, kind in values.items():
            fault.add_argument(value, type=kind)


def run(given: argparse.Namespace) -> int:
    """Do what the command line says."""
    if given.verb == "up":
        show(Fleet.up(given.number, kind=given.kind, keep=True))
    elif given.verb == "down":
        down(given)
    elif given.verb == "status":
        status(given)
    elif given.verb == "connection":
        print(Fleet.load(given.fleet).connection_json())
    elif given.verb == "exec":
        return execute(given)
    elif given.verb == "ssh":
        fleet = Fleet.load(given.fleet)
        return subprocess.call([*fleet.ssh(fleet[given.host]), *given.argv])
    else:
        befall(given)
    return 0


def show(fleet: Fleet) -> None:
    """Print what somebody needs to log in."""
    if fleet.why:
        print(f"{fleet.why}.\nSo these are sshd processes on loopback, which share this machine:")
    print(f"fleet {fleet.id} ({fleet.kind}), key {fleet.key_file}")
    for host in fleet.hosts:
        state = "up" if host.pids() else "off"
        print(f"  {host.name:8} {state:4} {host.user}@{host.address}:{host.port}")


def down(given: argparse.Namespace) -> None:
    """End one fleet, or all."""
    if given.all:
        for entry in record.standing():
            Fleet(entry).down()
    else:
        Fleet.load(given.fleet).down()


def status(given: argparse.Namespace) -> None:
    """Show one fleet, or all."""
    entries = [record.load(given.fleet)] if given.fleet else record.standing()
    for entry in entries:
        show(Fleet(entry))
    if not entries:
        print("no fleet stands here")


def execute(given: argparse.Namespace) -> int:
    """Run a program on a host and pass on what it says."""
    done = Fleet.load(given.fleet)[given.host].exec(given.argv, user=given.user, check=False)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def befall(given: argparse.Namespace) -> None:
    """Let a host suffer what the verb says."""
    host = Fleet.load(given.fleet)[given.host]
    if given.verb == "restart-sshd":
        host.restart_sshd(**dict(option.split("=", 1) for option in given.options))
        return
    values = [getattr(given, value) for value in FAULTS[given.verb]]
    getattr(host, given.verb.replace("-", "_"))(*values)


def main() -> int:
    """Run, and say in one line what went wrong."""
    try:
        return run(arguments().parse_args())
    except (FaultUnavailable, LookupError, MissingPrivilege, RuntimeError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
