"""Check on a machine with an NVIDIA GPU what a machine without one cannot show.

``python tests/gpu_check.py`` with torch in the same environment; no network, no Airflow. It starts
a real job of one rank on this machine through the agent, prints a line for each check and exits
with the number of those that failed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from distributed_training.fleet import Host
from distributed_training.plan import JobSpec, Program
from distributed_training.run import collect
from distributed_training.run.agents import HostAgent
from distributed_training.run.job import JobRef
from distributed_training.run.launch import launch
from distributed_training.run.offer import offers
from distributed_training.run.watch import Watcher
from distributed_training.transport.local import LocalTransport

STEP = """
import json, os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(os.environ["DT_BACKEND"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = model.module.weight.detach().clone()
loss = model(torch.ones(64, 1024, device="cuda")).square().mean()
loss.backward()
optimizer.step()
json.dump({
    "backend": dist.get_backend(), "world_size": dist.get_world_size(),
    "devices": os.environ["CUDA_VISIBLE_DEVICES"], "seen": torch.cuda.device_count(),
    "uuid": str(torch.cuda.get_device_properties(0).uuid), "loss": loss.item(),
    "moved": (model.module.weight - before).abs().max().item(),
}, open(os.environ["DT_RESULT_FILE"], "w"))
print("holding", flush=True)
import time; time.sleep(3)
dist.destroy_process_group()
"""


def nvidia_smi(query: str) -> list[str]:
    """Return the lines that nvidia-smi answers."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")


class Check:
    """Counts and tells what holds and what does not."""

    failed = 0

    def __call__(self, what: str, holds: bool, seen: object) -> None:
        """Tell whether ``what`` holds."""
        self.failed += not holds
        print(f"{'ok    ' if holds else 'FAILED'} {what}: {seen}", flush=True)


async def main(check: Check, root: str, script: Path) -> None:
    """Run the checks."""
    agent = HostAgent(LocalTransport(Host("localhost", address="127.0.0.1")), root)
    (offer,) = await offers([agent])
    uuids = [line for line in nvidia_smi("--query-gpu=uuid") if line]
    check("the agent sees the GPUs", [gpu["uuid"] for gpu in offer.gpus] == uuids, offer.gpus)
    used_before = nvidia_smi("--query-gpu=memory.used")[0]

    spec = JobSpec(
        "gpu-check", Program("script", str(script)), nproc_per_node=1, python=sys.executable
    )
    plan = await launch(spec, [agent], owner="check")
    (busy,) = await offers([agent])
    check("the GPU is held while the job runs", list(busy.busy) == [f"gpu-{uuids[0]}"], busy.busy)

    watcher = Watcher(JobRef.of(plan), {"localhost": agent}, "check", print)
    outcome = await watcher.watch()
    check("one rank took a training step over NCCL", outcome.error is None, outcome.error)
    result = (await collect.result(outcome.ref, {"localhost": agent})).result or {}
    print(json.dumps(result))
    check("the backend is nccl", result.get("backend") == "nccl", result.get("backend"))
    check("CUDA_VISIBLE_DEVICES is the UUID", result.get("devices") == uuids[0], result)
    check("the rank sees this GPU alone", result.get("seen") == 1, result.get("seen"))
    check("and it is that one", str(result.get("uuid")) in uuids[0], result.get("uuid"))
    check("the weights moved", (result.get("moved") or 0) > 0, result.get("moved"))

    (after,) = await offers([agent])
    check("the GPU is free when the job has ended", not after.busy, after.busy)
    used = nvidia_smi("--query-gpu=memory.used")[0]
    check("its memory is free again", abs(int(used) - int(used_before)) < 64, f"{used} MiB")
    print("\n".join(nvidia_smi("--query-gpu=name,driver_version,memory.total")))


if __name__ == "__main__":
    checked = Check()
    with tempfile.TemporaryDirectory() as folder:
        step = Path(folder, "step.py")
        step.write_text(STEP)
        asyncio.run(main(checked, folder, step))
    print(f"{checked.failed} checks failed")
    sys.exit(checked.failed)
