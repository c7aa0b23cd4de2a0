"""Records of trainings, as tasks leave them, for states that are hard to bring about."""

from __future__ import annotations

import math
import time
from typing import Any

GIB = 1 << 30
TRACEBACK = """rank 3 on gpu2 exited with status 1 after 41.2 s
its traceback:
  Traceback (most recent call last):
    File "train.py", line 88, in <module>
      main()
    File "train.py", line 61, in main
      loss.backward()
  RuntimeError: CUDA error: an illegal memory access was encountered"""
LINKS = {"MLflow": "https://mlflow.example.com/#/runs/1", "Bad": "javascript:alert(1)"}


def slot(host: int, place: int) -> str:
    """Return the name of a GPU's slot."""
    return f"gpu-GPU-{host:04x}{place:04x}-aaaa-bbbb-cccc-0123456789ab"


def training(state: str, hosts: int = 2, each: int = 2, **more: Any) -> dict[str, Any]:
    """Return the record of a job in a state, on this many hosts with this many ranks each."""
    now = time.time()
    rank_state = {"running": "running", "success": "ended", "stopped": "stopped"}.get(
        state, "waiting"
    )
    ended = now - 2 if state in {"success", "failed", "stopped"} else None
    started = now - 3725 if state not in {"waiting", "preparing"} else None
    ranks = [
        {
            "rank": host * each + place,
            "host": f"gpu{host + 1}",
            "role": "",
            "slot": slot(host, place),
            "state": rank_state,
            "started": started,
            "ended": ended,
            "code": 0 if state == "success" else None,
            "signal": None,
        }
        for host in range(hosts)
        for place in range(each)
    ]
    record = {
        "v": 1,
        "job_id": "digits-train-1f0c2a9b7d-1",
        "attempt": 0,
        "restarts": 0,
        "state": state,
        "since": now - 3800,
        "started": started,
        "updated": now,
        "ended": ended,
        "message": None,
        "world_size": hosts * each,
        "hosts": [
            {
                "name": f"gpu{host + 1}",
                "address": f"10.0.0.{host + 1}",
                "state": "ended" if ended else "running",
                "reason": None,
            }
            for host in range(hosts)
        ],
        "ranks": ranks,
        "verdict": None,
        "series": {},
        "usage": {},
        "links": LINKS,
    }
    return {**record, **more}


def waiting() -> dict[str, Any]:
    """Return a job that waits for slots."""
    message = (
        "waiting for 2 slots on gpu1 and gpu2\ngpu2 cpu-0, cpu-1 held by job nightly-9 of user ann"
    )
    return training("waiting", ranks=[], message=message, links={})


def failed(hosts: int = 2, each: int = 2) -> dict[str, Any]:
    """Return a job whose rank 3 failed, with curves and utilisation."""
    record = measured(training("failed", hosts, each, restarts=1, attempt=1))
    for rank in record["ranks"]:
        rank |= {"state": "failed", "code": None, "signal": "SIGTERM"}
        if rank["rank"] == 3:
            rank |= {"state": "failed_first", "code": 1, "signal": None}
    verdict = {"kind": "RankFailed", "message": TRACEBACK, "host": record["ranks"][3]["host"]}
    return {**record, "verdict": {**verdict, "rank": 3, "exit_code": 1, "signal": None}}


def big() -> dict[str, Any]:
    """Return a running job of 64 ranks, some of which are no longer well."""
    record = measured(training("running", 8, 8))
    states = {9: "failed_first", 8: "failed", 26: "stopped", 40: "waiting", 41: "ended"}
    states |= dict.fromkeys(range(56, 64), "lost")
    for rank, state in states.items():
        record["ranks"][rank]["state"] = state
    record["hosts"][7] |= {"state": "lost", "reason": "no answer for 600 s"}
    record["hosts"][6] |= {"state": "silent", "reason": "nothing heard for 20 s"}
    return record


def measured(record: dict[str, Any]) -> dict[str, Any]:
    """Add curves and utilisation."""
    start, points = record["started"], range(120)
    times = [start + 30 * n for n in points]

    def curve(shape: Any) -> list[list[float]]:
        return [[t, 10 * n, round(shape(n), 5)] for n, t in zip(points, times, strict=True)]

    series = {
        "train/loss": curve(lambda n: 2.3 * math.exp(-n / 30) + 0.15 * math.sin(n * 1.7) ** 2),
        "eval/loss": curve(lambda n: 2.3 * math.exp(-n / 34) + 0.2),
        "accuracy": curve(lambda n: 1 - 0.9 * math.exp(-n / 25)),
        "lr": curve(lambda n: 0.0003 * (1 + math.cos(n / 38)) / 2),
    }
    usage = {host["name"]: _usage(record, host["name"], times) for host in record["hosts"]}
    return {**record, "series": series, "usage": usage}


def _usage(record: dict[str, Any], host: str, times: list[float]) -> dict[str, Any]:
    ranks = [rank for rank in record["ranks"] if rank["host"] == host]

    def line(shape: Any) -> list[list[float]]:
        return [[t, shape(n)] for n, t in enumerate(times)]

    gpus = {
        rank["slot"][4:]: {
            "busy": line(lambda n, r=i: 0.9 - 0.3 * abs(math.sin(n / 9 + r))),
            "memory": line(lambda n, r=i: (60 + 2 * r + min(n, 10)) * GIB),
            "memory_total": 80 * GIB,
        }
        for i, rank in enumerate(ranks)
    }
    own = {
        str(rank["rank"]): {
            "cpu": line(lambda n: 1 + 0.2 * math.sin(n / 5)),
            "memory": line(lambda n: (6 + n / 60) * GIB),
        }
        for rank in ranks
    }
    whole = {"cpu": line(lambda n: 0.4 + 0.1 * math.sin(n / 7)), "memory": line(lambda n: 90 * GIB)}
    return {**whole, "memory_total": 512 * GIB, "gpus": gpus, "ranks": own}


def plan(record: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of a job."""
    columns = {"Python": "3.11.2", "frameworks": "torch 2.13.0", "GPUs": "2 x NVIDIA H200"}
    columns |= {"disk free": "811.0 GiB", "clock": "+0.0 s", "network": "eth0 10.0.0.1"}
    environment = {
        str(rank["rank"]): {
            "RANK": str(rank["rank"]),
            "WORLD_SIZE": str(record["world_size"]),
            "MASTER_ADDR": "10.0.0.1",
            "HF_TOKEN": "***",
        }
        for rank in record["ranks"]
    }
    return {
        "v": 1,
        "attempt": 0,
        "launcher": "process",
        "lines": [f"{host['name']}: 2 ranks" for host in record["hosts"]],
        "preflight": [{"host": host["name"], "columns": columns} for host in record["hosts"]],
        "preflight_notes": ["warning: gpu2: clock: it is +4 s off Airflow's clock"],
        "environment": environment,
    }


def lines(record: dict[str, Any], rounds: int = 20) -> list[str]:
    """Return what the ranks printed; rank 3 ends with its traceback."""
    told = [
        f"[rank {rank['rank']} {rank['host']}] step {10 * n} loss {2.3 * math.exp(-n / 9):.4f}"
        for n in range(rounds)
        for rank in record["ranks"]
    ]
    if record["verdict"]:
        at = f"[rank 3 {record['verdict']['host']}]"
        told += [f"{at} {line[2:]}" for line in TRACEBACK.splitlines()[2:]]
    return ["[gpu1] 2 ranks started", *told]


HOSTILE = [
    "[rank 0 gpu1] <script>globalThis.broken = true</script>",
    '[rank 0 gpu1] <img src=x onerror="globalThis.broken = true">',
    "[rank 0 gpu1] \x1b[31mred\x1b[0m \x1b]0;title\x07and\x00plain",
    "[rank 0 gpu1] " + "long " * 20_000 + "end",
    "[rank 1 gpu1] ::group::no group",
    "[rank 1 gpu1] ünïcödé 漢字 🎉 \u202eright to left",
]


def health() -> dict[str, Any]:
    """Return what the DAG `fleet_health` records of hosts in all states."""
    columns = {"Python": "3.11.2", "GPUs": "4 x NVIDIA H200", "disk free": "811.0 GiB"}
    reasons = {
        "ok": None,
        "failed": "disk: 0.2 GiB are free for ~/.distributed_training; free space there",
        "unreachable": "SSH: no route to host",
        "drained": "drained by ann since 2026-11-28 (new fans)",
        "quarantined": "quarantined until 2026-12-01: GPU 2 fell off the bus",
    }
    hosts = [
        {
            "name": f"gpu{n + 1}",
            "slots": [] if state == "unreachable" else [slot(n, place) for place in range(4)],
            "state": state,
            "reason": reason,
            "columns": {} if state == "unreachable" else columns,
            "busy": {slot(0, 3): "nightly · train"} if n == 0 else {},
        }
        for n, (state, reason) in enumerate(reasons.items())
    ]
    fleet = {"conn_id": "gpu_fleet_default", "hosts": hosts}
    return {"v": 1, "checked": time.time() - 200, "fleets": [fleet]}
