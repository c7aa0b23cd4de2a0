"""Real training hosts on this machine, for tests and the demo.

As root each host has namespaces of its own, and with them its own address, processes, `/etc`,
`/tmp`, `/run`, `/root`, `/home`, `/var/tmp`, `/var/log` and `/dev/shm`, host key and OpenSSH `sshd`
on port 22. Ranks run as the ordinary user `trainer`. Hosts share nothing that can be written,
cannot log in to each other, and do not see this checkout. Otherwise (`fleet.kind == "loopback"`)
they are several `sshd` of the current user on loopback, which share the machine but for a home of
their own; `fleet.why` says what is missing.

    with Fleet.up(2) as fleet:
        gpu1, gpu2 = fleet.hosts                  # or fleet["gpu1"]
        gpu1.name, gpu1.address, gpu1.port, gpu1.user, gpu1.host_key
        gpu1.exec(["hostname"])                   # inside the host, without SSH -> CompletedProcess
        gpu1.processes()                          # seen from outside -> [Process]
        gpu1.write_file("script.py", "print(1)")  # relative to the user's home
        gpu1.read_file("script.py")
        fleet.private_key, fleet.key_file         # text and path
        fleet.ssh(gpu1) + ["hostname"]            # an argv of OpenSSH's client, host key pinned
        fleet.hosts_text(slots=2)                 # the host list of a connection, host keys pinned
        fleet.connection(python=...)              # an Airflow connection as a dict
        fleet.connection_json(python=...)         # the same for AIRFLOW_CONN_GPU_FLEET_DEFAULT

What may befall a host (the same words are verbs of `python -m tests.fleet`):

        gpu1.power_cut(), gpu1.power_on()         # silence; then another boot id, home kept
        gpu1.cut_cable(), gpu1.plug_cable()
        gpu1.drop_connections()                # of SSH; what they had started lives on
        gpu1.freeze(), gpu1.thaw()                # SSH falls silent while TCP lives
        gpu1.restart_sshd(MaxStartups="2:100:2")  # any option, by sshd's own name
        gpu1.clock_offset(300)                    # seconds; for what SSH starts from now on
        gpu1.add_interface("docker0", "172.17.0.1/16"), gpu1.add_nic("eth1", "10.78.0.1/24")
        gpu1.noisy_bashrc()                       # ~/.bashrc greets, also before sftp
        gpu1.set_password("secret")               # and lets it log in
        gpu1.forget_names()                       # /etc/hosts has its own name alone, at 127.0.1.1
"""

from tests.fleet.fleet import Fleet
from tests.fleet.host import FaultUnavailable, Host
from tests.fleet.namespaces import MissingPrivilege
from tests.fleet.processes import Process

__all__ = ["FaultUnavailable", "Fleet", "Host", "MissingPrivilege", "Process"]
