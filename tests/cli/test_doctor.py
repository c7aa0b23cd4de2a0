"""`doctor`: everything about every host in one table."""

from __future__ import annotations

import json


def test_a_fleet_in_order_is_shown_row_by_row(jobs, fleet, shell):
    done = shell("doctor")
    assert (done.status, done.err) == (0, "")
    head, *rows = done.out.splitlines()
    for column in (
        "Python",
        "frameworks",
        "GPUs",
        "disk free",
        "clock",
        "memlock",
        "/dev/shm free",
    ):
        assert column in head
    assert [row.split()[:2] for row in rows] == [["gpu1", "ok"], ["gpu2", "ok"]]
    for row, host in zip(rows, fleet.hosts, strict=True):
        assert row.endswith(f"eth0 {host.address}")


def test_an_interpreter_that_is_not_there_is_told(jobs, shell):
    done = shell("doctor", "--python", "/nope/python")
    assert done.status == 1
    assert "python /nope/python cannot be run: there is none" in done.out


def test_a_hostfile_needs_no_airflow(fleet, shell, tmp_path):
    (tmp_path / "hosts").write_text(fleet.hosts_text(slots=1))
    login = ("--user", fleet.hosts[0].user, "--key-file", str(fleet.key_file))
    done = shell("doctor", "--hostfile", str(tmp_path / "hosts"), *login)
    assert (done.status, done.err) == (0, "")
    assert len(done.out.splitlines()) == 3


def test_all_that_is_wrong_is_told_with_what_to_do(jobs_on, make_fleet, shell):
    hosts = make_fleet(3)
    jobs_on(hosts, slots=1, conn_timeout=2)
    hosts["gpu1"].clock_offset(300)
    hosts["gpu2"].exec(["sh", "-c", "mount -o remount,size=64m /dev/shm"], user="root")
    hosts["gpu3"].power_cut()
    done = shell("doctor")
    assert done.status == 1
    found = {line.split(":")[1].strip(): line for line in done.out.splitlines() if ": gpu" in line}
    assert found["gpu1"].startswith("warning: gpu1: clock: it is +")
    assert "/dev/shm: 64 MiB are free" in found["gpu2"]
    assert "--shm-size" in found["gpu2"]
    assert found["gpu3"].startswith("failure: gpu3: SSH: cannot reach gpu3")


def test_a_host_whose_address_others_cannot_reach_is_told(jobs_on, make_fleet, shell):
    hosts = make_fleet(2)
    listed = hosts.hosts_text(slots=1).replace(
        f"address={hosts['gpu1'].address}", "address=240.0.0.1"
    )
    jobs_on(hosts, hosts=listed)
    done = shell("doctor", "--json")
    assert done.status == 1
    report = json.loads(done.out)
    assert report["hosts"]["gpu1"]["state"] == "warning"
    found = [(f["host"], f["severity"], f["check"]) for f in report["findings"]]
    assert found == [("gpu1", "warning", "network"), ("gpu2", "failure", "network")]
    assert "it cannot reach gpu1 at 240.0.0.1" in report["findings"][1]["why"]


def test_processes_of_nobodys_job_on_a_gpu_are_told(jobs_on, make_fleet, shell):
    """The driver's answers are all that is made up here."""
    hosts = make_fleet(1)
    smi = "#!/bin/sh\ncase $1 in --query-gpu=uuid,index*) echo GPU-1, 0, NVIDIA Test, 81559;;\n"
    smi += "--query-compute-apps*) echo GPU-1, 1;; esac\n"
    hosts["gpu1"].write_file("bin/nvidia-smi", smi, mode=0o755)
    hosts["gpu1"].write_file(".bashrc", "export PATH=$HOME/bin:$PATH\n")
    jobs_on(hosts, slots=1)
    done = shell("doctor")
    assert "1 x NVIDIA Test" in done.out
    assert "failure: gpu1: a wanted GPU is in use: by processes of no job: 1 of root" in done.out
