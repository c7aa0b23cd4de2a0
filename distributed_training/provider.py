"""What Airflow is told of this package: operators, decorators, hook and trigger, and a form."""

from __future__ import annotations

from typing import Any

from distributed_training import __version__

NAME = "Distributed training"
OPERATORS = ("torch", "mpi", "tensorflow", "jax", "ray")
DECORATORS = {
    "torch_distributed": "torch",
    "mpi": "mpi",
    "tf_multiworker": "tensorflow",
    "jax_distributed": "jax",
}

HOSTS = """\
# name  slots    how others reach it  how SSH reaches it
gpu1    slots=8  address=10.0.0.1     ssh=203.0.113.7 port=2222
alice@gpu2 slots=4"""


def _modules(*names: str) -> dict[str, Any]:
    modules = [f"distributed_training.{name}" for name in names]
    return {"integration-name": NAME, "python-modules": modules}


def _decorator(name: str, module: str) -> dict[str, str]:
    function = f"distributed_training.decorators.{module}.{name}_task"
    return {"name": name, "class-name": function}


def _field(label: str, description: str, kind: str, **schema: Any) -> dict[str, Any]:
    # "null" lets the form be saved with the field left empty.
    return {
        "label": label,
        "description": description,
        "schema": {"type": [kind, "null"], **schema},
    }


# The extras of the connection; beside those of Airflow's "ssh", hosts, python and work_dir.
FIELDS = {
    "hosts": _field(
        "Hosts",
        "One a line: [user@]name, then slots= (ranks), address= (for other hosts), ssh= and port= "
        "(for SSH), gpus=0,1, host_key=. What Open MPI, DeepSpeed, MPICH and Horovod take, too.",
        "string",
        format="multiline",
    ),
    "private_key": _field(
        "Private key",
        "Text of an RSA, ECDSA or Ed25519 key. It may lose its line ends here.",
        "string",
        format="password",
    ),
    "private_key_passphrase": _field(
        "Passphrase", "Of the private key or the key file.", "string", format="password"
    ),
    "key_file": _field(
        "Key file", "Path of a private key where tasks and triggers run, instead.", "string"
    ),
    "host_key": _field(
        "Host key",
        "Public key of a single host, 'ssh-ed25519 AAAA…'. Several have host_key= in the list.",
        "string",
    ),
    "known_hosts": _field(
        "Known hosts",
        "Lines of a known_hosts file, or its path. Empty: ~/.ssh/known_hosts.",
        "string",
        format="multiline",
    ),
    "no_host_key_check": _field(
        "Accept unknown host keys", "Anybody may then pose as a host.", "boolean", default=False
    ),
    "allow_host_key_change": _field(
        "Accept changed host keys", "Check no host key but pinned ones.", "boolean", default=False
    ),
    "look_for_keys": _field("Use the keys in ~/.ssh", "", "boolean", default=True),
    "compress": _field("Compress", "Slower on a fast network.", "boolean", default=True),
    "host_proxy_cmd": _field(
        "Proxy command",
        "Its stdin and stdout lead to the host, as in 'ssh -W %h:%p jump'.",
        "string",
    ),
    "conn_timeout": _field(
        "Connect timeout", "Seconds.", "integer", default=10, minimum=1, maximum=600
    ),
    "python": _field(
        "Python", "Interpreter that ranks run in, unless the task names one: python3.", "string"
    ),
    "work_dir": _field(
        "Work folder", "On the hosts, for all of ours: ~/.distributed_training.", "string"
    ),
    "quarantine": _field(
        "Quarantine",
        "Seconds that a host is left out after it was restarted under a job, or its GPU failed.",
        "integer",
        default=0,
        minimum=0,
    ),
    "disk_cap": _field(
        "Disk cap",
        "GB that ended jobs and sources may take on a host before the oldest are removed.",
        "integer",
        default=100,
        minimum=1,
    ),
}


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow's provider discovery reads; it must import nothing of Airflow."""
    return {
        "package-name": "airflow-provider-distributed-training",
        "name": NAME,
        "description": "Run distributed training on your own GPU hosts over plain SSH.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": NAME,
                "tags": ["software"],
            }
        ],
        "operators": [_modules(*(f"operators.{name}" for name in OPERATORS))],
        "task-decorators": [_decorator(*names) for names in DECORATORS.items()],
        "hooks": [_modules("hooks.fleet")],
        "triggers": [_modules("triggers.job", "triggers.queue")],
        "connection-types": [
            {
                "connection-type": "gpu_fleet",
                "hook-class-name": "distributed_training.hooks.fleet.FleetHook",
                "hook-name": "GPU fleet",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "host"],
                    "relabeling": {"login": "SSH user", "port": "SSH port"},
                    "placeholders": {"login": "trainer", "port": "22", "hosts": HOSTS},
                },
                "conn-fields": FIELDS,
            }
        ],
    }
