"""A torchrun that starts its ranks again, with other numbers and other peers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.agent.host import Job, texts, until

# What torchrun does: starts a group of ranks; asks the others to end as soon as one has failed, or
# all of them when a file tells that another node wants to; and starts the next group, if it may.
TORCHRUN = """
    import json, os, subprocess, sys, time
    groups, command = json.loads(sys.argv[1]), sys.argv[2:]
    for group in groups:
        numbers = {name: str(value) for name, value in group.items() if name != "ranks"}
        children = [
            subprocess.Popen(
                command,
                env={**os.environ, **numbers, "RANK": str(rank), "LOCAL_RANK": str(n)},
                start_new_session=True,
            )
            for n, rank in enumerate(group["ranks"])
        ]
        while not any(child.poll() for child in children) and not os.path.exists("regroup"):
            if all(child.poll() == 0 for child in children):
                sys.exit(0)
            time.sleep(0.01)
        for child in children:
            child.terminate()
        codes = [child.wait() for child in children]
    sys.exit(1)
"""


def group(*ranks: int, of: int, nodes: int, restart: int = 0, most: int = 1) -> dict[str, Any]:
    """Return what torchrun tells the ranks of a node."""
    return {
        "ranks": ranks,
        "WORLD_SIZE": of,
        "GROUP_WORLD_SIZE": nodes,
        "GROUP_RANK": nodes - 1,
        "TORCHELASTIC_RESTART_COUNT": restart,
        "TORCHELASTIC_MAX_RESTARTS": most,
    }


def launch(job: Job, program: str, *groups: dict[str, Any], **fields: Any) -> None:
    """Start one group of ranks after the other, as far as each fails."""
    prepared = job.prepare()
    wrapper = ["python3", "-I", f"{prepared['dir']}/agent.pyz", "rank", "--elastic", "--"]
    launcher = job.rank(0, TORCHRUN, **fields.pop("env", {}))
    launcher["argv"] += [json.dumps(groups), *wrapper, sys.executable, "-c", program]
    launcher |= {"name": "launcher", "rank": None}
    del launcher["env"]["RANK"]
    known = {"processes": [launcher], "ranks": list(groups[0]["ranks"]), "elastic": True}
    started = job.start(**known | fields)
    assert started["ok"], started


def ends(journal: list[dict[str, Any]]) -> list[tuple[int, int | None, bool]]:
    """Return number and code of each rank that ended, and whether torchrun goes on."""
    found = [each for each in journal if each["k"] == "exit" and each["rank"] is not None]
    return [(each["rank"], each["code"], each["again"]) for each in found]


FAILS_ONCE = """
import os, sys, time
print("rank", os.environ["RANK"], "of node", os.environ["NODE_RANK"], flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["LOCAL_RANK"] == "1":
        open("ready", "w").close()
        time.sleep(600)
    while not os.path.exists("ready"):
        time.sleep(0.01)
    sys.exit(7)
"""


def test_ranks_that_are_started_again_may_succeed(job: Job) -> None:
    launch(job, FAILS_ONCE, group(0, 1, of=2, nodes=1), group(0, 1, of=2, nodes=1, restart=1))
    journal = job.journal()
    first, rest = ends(journal)[:2], ends(journal)[2:]
    assert sorted(first, key=str) == [(0, 7, True), (1, None, True)]
    assert sorted(rest) == [(0, 0, False), (1, 0, False)]
    notes = [each["m"] for each in journal if each["k"] == "note"]
    assert "rank 0 has failed (status 7); restarts left to torchrun: 1" in notes
    assert journal[-1]["state"] == "success"


def test_ranks_may_have_other_numbers_when_they_are_started_again(job: Job) -> None:
    shrunk = group(2, 3, of=4, nodes=2, restart=1)
    launch(job, FAILS_ONCE, group(4, 5, of=6, nodes=3), shrunk)
    journal = job.journal()
    assert texts(journal, 4) == ["rank 4 of node 2"]
    assert texts(journal, 2) == ["rank 2 of node 1"]
    end = journal[-1]
    assert (end["state"], end["ranks"], end["world_size"]) == ("success", [2, 3], 4)
    logs = sorted(path.name for path in (job.path / "logs").glob("rank-*"))
    assert logs == ["rank-2.restart-1.log", "rank-3.restart-1.log", "rank-4.log", "rank-5.log"]


def test_the_last_failure_ends_the_node_at_once(job: Job) -> None:
    program = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(7); time.sleep(600)"
    again = group(0, 1, of=2, nodes=1, restart=1)
    launch(job, program, group(0, 1, of=2, nodes=1), again, group(0, 1, of=2, nodes=1))
    journal = job.journal()
    assert [end for end in ends(journal) if end[1] == 7] == [(1, 7, True), (1, 7, False)]
    assert (journal[-1]["state"], journal[-1]["reason"]) == ("failed", "rank failed")


def test_a_rank_that_ends_well_because_it_was_asked_to_has_not_finished(job: Job) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True); time.sleep(600)
"""
    launch(job, program, group(0, of=2, nodes=2))
    job.wait_for("ready")
    (job.path / "work/regroup").touch()
    journal = job.journal()
    assert ends(journal) == [(0, 0, True)]
    assert journal[-1]["reason"] == "the launcher ended, but rank 0 did not succeed"


def test_ranks_with_peers_on_a_lost_host_are_ended_and_no_others(job: Job) -> None:
    program = """
import os, time
print("begins", os.environ["GROUP_WORLD_SIZE"], flush=True)
while not os.path.exists("enough"):
    time.sleep(0.01)
"""
    launch(job, program, group(2, of=3, nodes=3), group(1, of=2, nodes=2, restart=1))
    job.wait_for("begins 3")
    assert job.call("shrink", nodes=2)["ok"]
    job.wait_for("begins 2")
    assert job.call("shrink", nodes=2)["ok"]
    (job.path / "work/enough").touch()
    journal = job.journal()
    assert ends(journal) == [(2, None, True), (1, 0, False)]
    assert [each["by_us"] for each in journal if each["k"] == "exit"][:2] == [True, False]
    assert journal[-1]["state"] == "success"


def test_ranks_that_are_started_again_resume_from_the_newest_checkpoint(
    job: Job, tmp_path: Any
) -> None:
    program = """
import os, pathlib, sys
print("from", os.environ.get("DT_RESUME_FROM"), flush=True)
saved = pathlib.Path(os.environ["DT_CHECKPOINT_DIR"], "step-1")
saved.mkdir(exist_ok=True)
(saved / ".complete").touch()
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""
    groups = [group(0, of=1, nodes=1), group(0, of=1, nodes=1, restart=1)]
    launch(job, program, *groups, env={"DT_CHECKPOINT_DIR": str(tmp_path)})
    assert texts(job.journal()) == ["from None", f"from {tmp_path}/step-1"]


@pytest.mark.parametrize(("joined", "state"), [(4, "failed"), (2, "success")])
def test_a_rank_has_to_join_all_that_were_started_with_it(
    job: Job, joined: int, state: str
) -> None:
    """What it joined when it was started before does not count, nor how many there were then."""
    program = """
import os, sys
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
path = os.path.join(os.environ["DT_NODE_DIR"], "ranks", os.environ["DT_RANK"] + ".groups")
with open(path, "a") as file:
    file.write("torch.distributed " + ("4" if first else os.environ["JOINED"]) + "\\n")
sys.exit(first)
"""
    groups = [group(0, of=4, nodes=2), group(0, of=2, nodes=1, restart=1)]
    env = {"JOINED": str(0 if joined == 4 else joined)}
    launch(job, program, *groups, group_size=4, env=env)
    assert until(lambda: job.journal()[-1])["state"] == state
