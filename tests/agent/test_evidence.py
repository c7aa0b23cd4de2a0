"""What a failing rank, its kernel and its GPUs leave as evidence."""

from __future__ import annotations

import secrets
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.agent.host.gpu_faults import bus_place
from distributed_training.agent.host.tracebacks import shortened, traceback_of
from tests.agent.host import exits, until

if TYPE_CHECKING:
    from tests.agent.host import Job

PLAIN = """
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
ValueError: lr
""".strip().splitlines()
AT_EXIT = ["[W1130 12:00:00.1 ProcessGroup.cpp:1] Connection closed by peer [10.0.0.1]:1234"]


def test_a_traceback_is_found_whatever_was_printed_after_it() -> None:
    noise = [f"noise {n}" for n in range(99)]
    assert traceback_of(["epoch 1", *PLAIN, *AT_EXIT, *noise]) == PLAIN


def test_a_traceback_is_found_behind_the_prefix_that_torch_gives_it() -> None:
    printed = [f"[rank3]: {line}" for line in PLAIN]
    assert traceback_of(["epoch 1", *printed, f"[rank3]:{AT_EXIT[0]}"]) == PLAIN


def test_the_exceptions_that_led_to_the_last_one_are_told() -> None:
    chain = ["", "During handling of the above exception, another exception occurred:", ""]
    log = ["old", *PLAIN, "epoch 2", *PLAIN, *chain, *PLAIN]
    assert traceback_of(log) == [*PLAIN, *chain, *PLAIN]


def test_the_traceback_of_a_loader_is_told_within_that_of_its_rank() -> None:
    nested = ["Original Traceback (most recent call last):", '  File "data.py"', "KeyError: 'x'"]
    log = [*PLAIN[:-1], "KeyError: Caught KeyError in DataLoader worker process 0.", *nested]
    assert traceback_of([*log, "", "noise"]) == log


def test_a_thread_or_a_finalizer_does_not_end_a_program() -> None:
    aside = ["Exception ignored in: <function f>", *PLAIN]
    assert traceback_of([*PLAIN, "", *aside]) == PLAIN
    assert traceback_of(aside) == []


def test_a_traceback_without_end_loses_its_middle() -> None:
    long = shortened([str(n) for n in range(5000)])
    assert (long[0], long[-1], len(long)) == ("0", "4999", 61)


def test_the_traceback_of_a_rank_is_in_its_record(job: Job) -> None:
    journal = job.run("import atexit\natexit.register(print, 'bye\\n' * 200)\n{}['x']")
    assert "KeyError: 'x'" in exits(journal)[0]["traceback"]
    assert "KeyError: 'x'" not in exits(journal)[0]["tail"]


def test_what_nccl_warned_of_is_in_the_record(job: Job) -> None:
    warning = "gpu1:1:1 [0] socket.cc:484 NCCL WARN Connect to 10.0.0.1<99> failed"
    journal = job.run(f"print({warning!r})\nprint('noise\\n' * 99)\nraise SystemExit(1)")
    assert exits(journal)[0]["nccl"] == [warning]


RECORD = """
import json, os, time
stack = "Traceback (most recent call last):\\n  File 'train.py'\\nValueError: lr"
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    info = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    json.dump({"message": {"message": "ValueError: lr", "extraInfo": info}}, file)
raise SystemExit(1)
"""


def test_the_error_file_of_torch_tells_more_than_the_log(job: Job) -> None:
    assert exits(job.run(RECORD))[0]["traceback"][-1] == "ValueError: lr"


def test_the_error_file_of_a_launcher_is_read_before_the_launcher_is_gone(
    job: Job, tmp_path: Path
) -> None:
    job.prepare()
    rank = job.rank(0, RECORD, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    wrapped = [sys.executable, str(job.path / "agent.pyz"), "rank", "--", *rank["argv"]]
    launcher = {**rank, "name": "launcher", "rank": None, "argv": wrapped}
    job.start(processes=[launcher], ranks=[0])
    assert exits(job.journal())[0]["traceback"][-1] == "ValueError: lr"


# GPUs


@pytest.mark.parametrize("address", ["0000:65:00", "00000000:65:00.0", "0:65:0.1"])
def test_a_gpu_is_known_by_its_place_however_it_is_written(address: str) -> None:
    assert bus_place(address) == (0, 0x65, 0)


GPU = "GPU-aaaa"
SMI = """
#!/bin/sh
# {gpu} with as many errors as the file `errors` says; without that file, it is off the bus.
errors=$(cat {folder}/errors) || exit 0
case $1 in
--query-gpu=uuid,pci.bus_id) echo "{gpu}, 00000000:{bus}.0" ;;
--query-gpu=uuid,ecc*) echo "{gpu}, $errors" ;;
--query-gpu=uuid,index*) echo "{gpu}, 0, NVIDIA Test, 81559" ;;
--query-gpu=*) echo "Field is not a valid field to query."; exit 2 ;;
--query-remapped*) touch {folder}/asked ;;
esac
"""


@pytest.fixture
def bus() -> str:
    """A place that no other test's GPU has: the kernel log is everybody's."""
    number = secrets.randbelow(1 << 13)
    return f"{number >> 5:02X}:{number & 31:02X}"


@pytest.fixture
def gpu_job(job: Job, tmp_path: Path, bus: str) -> Job:
    """A job on a GPU, which a stand-in for nvidia-smi describes."""
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI.strip().format(gpu=GPU, folder=tmp_path, bus=bus))
    program.chmod(0o755)
    (tmp_path / "errors").write_text("0")
    job.host.env["PATH"] = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"
    assert job.prepare(slots=[f"gpu-{GPU}"])["ok"]
    until((tmp_path / "asked").exists)  # how the GPU was before
    return job


def faults(job: Job, happen: str) -> list[dict[str, Any]]:
    """Return what is known of the GPU after something happened to it and its rank failed."""
    wait = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n"
    job.start(wait + textwrap.dedent(happen) + "\nraise SystemExit(1)")
    (job.path / "work/go").touch()
    return list(job.journal()[-1]["gpu_faults"])


def test_a_rank_that_fails_on_a_sound_gpu_leaves_no_evidence(gpu_job: Job) -> None:
    assert faults(gpu_job, "") == []
    assert "fault" not in gpu_job.host.call("offer")


def test_a_gpu_that_fails_is_noted_as_a_fault_of_the_host(gpu_job: Job, tmp_path: Path) -> None:
    faults(gpu_job, f"pathlib.Path('{tmp_path}/errors').write_text('2')")
    told = gpu_job.host.call("offer")["fault"]["reason"]
    assert told == f"under job {gpu_job.key['job']}, {GPU}: uncorrected ECC errors: 2"


def test_an_ecc_error_that_came_with_the_job_is_evidence(gpu_job: Job, tmp_path: Path) -> None:
    (found,) = faults(gpu_job, f"pathlib.Path('{tmp_path}/errors').write_text('2')")
    told = f"{GPU}: uncorrected ECC errors: 2"
    assert found == {"gpu": GPU, "m": told, "hardware": True}


def test_a_gpu_that_fell_off_the_bus_is_evidence(gpu_job: Job, tmp_path: Path) -> None:
    (found,) = faults(gpu_job, f"pathlib.Path('{tmp_path}/errors').unlink()")
    assert "does not list it any more" in found["m"]


@pytest.mark.parametrize(("xid", "hardware"), [(79, True), (13, False)])
def test_an_xid_of_its_gpu_is_evidence_and_one_of_another_is_not(
    gpu_job: Job, bus: str, xid: int, hardware: bool
) -> None:
    """A program's own fault is told too, but is not the GPU's."""
    log = Path("/dev/kmsg")
    log.write_text(f"<3>NVRM: Xid (PCI:0001:{bus}): 48, pid=1, another machine's\n")
    log.write_text(f"<3>NVRM: Xid (PCI:0000:{bus}): {xid}, pid=2, what the driver says\n")
    (found,) = faults(gpu_job, "")
    assert (found["gpu"], found["hardware"]) == (GPU, hardware)
    assert "what the driver says" in found["m"]
