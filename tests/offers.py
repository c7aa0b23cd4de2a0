"""Offers of hosts that are not there, for tests of what is pure."""

from __future__ import annotations

from typing import Any

from distributed_training.fleet import Host
from distributed_training.plan import JobSpec, Offer, Program

SCRIPT = Program("script", "train.py")


def offer(name: str = "gpu1", gpus: int = 0, **fields: Any) -> Offer:
    """Return the offer of a host at 10.0.0.N, N being the number in its name."""
    host = fields.pop("host", None) or Host(name, slots=fields.pop("slots", None))
    number = name.removeprefix("gpu")
    address = f"10.0.0.{number}"
    known: dict[str, Any] = {
        "machine_id": name,
        "root": "/home/ada/.distributed_training",
        "ssh_address": address,
        "addresses": {"127.0.0.1": "lo", address: "eth0"},
        "ports": (20001, 20002),
        "gpus": tuple({"uuid": f"GPU-{number}-{n}", "index": n} for n in range(gpus)),
    }
    return Offer(host=host, **(known | fields))


def spec(**fields: Any) -> JobSpec:
    """Return a specification of a job that runs a script."""
    return JobSpec(**({"job_id": "dag-task-1", "program": SCRIPT} | fields))
