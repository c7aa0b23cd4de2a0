"""What mpirun is told, and what its ranks are."""

from __future__ import annotations

import pytest

from distributed_training import launchers
from distributed_training.errors import PlanError
from distributed_training.mpirun import MpiOptions
from distributed_training.plan import Program
from tests.offers import offer, spec

HOME = "/home/ada/.distributed_training/jobs/dag-task-1/0"
VERSIONS = {
    "openmpi4": ("openmpi", "4.1.4"),
    "openmpi5": ("openmpi", "5.0.11"),
    "mpich": ("mpich", "5.0.2"),
    "intelmpi": ("intelmpi", "2021.18.1"),
}
EVERY = pytest.mark.parametrize("mpi", VERSIONS)


def hosts(mpi="openmpi4", slots=(2, 2), **fields):
    family, version = VERSIONS[mpi]
    mpirun = {"program": "/opt/mpi/bin/mpirun", "family": family, "version": version}
    facts = {"mpirun": mpirun, "uid": 1000} | fields.pop("facts", {})
    names = [f"gpu{n}" for n in range(1, len(slots) + 1)]
    return [
        offer(name, slots=n, facts=facts, **fields) for name, n in zip(names, slots, strict=True)
    ]


def plan(offers=None, *, options=None, **fields):
    fields = {"launcher": "mpi", "mpi": MpiOptions(**(options or {}))} | fields
    return launchers.plan(spec(**fields), offers or hosts())


def command(offers=None, **fields):
    return plan(offers, **fields).head.processes[0].argv


def ranks(planned):
    processes = [each for node in planned.nodes for each in node.processes]
    return [each for each in processes if each.rank is not None]


def follows(words, *expected):
    """Return whether words stand together among others."""
    return any(words[at : at + len(expected)] == expected for at in range(len(words)))


@EVERY
def test_one_mpirun_on_the_head_has_a_part_for_each_host_in_its_own_folder(mpi):
    planned = plan(hosts(mpi, (2, 3)))
    words = planned.head.processes[0].argv
    assert words[0] == "/opt/mpi/bin/mpirun"
    first, second = " ".join(words).split(" : ")
    for node, (part, count) in enumerate([(first, 2), (second, 3)]):
        assert f" {count} -wdir {HOME}/{node}/work python3 -I {HOME}/{node}/agent.pyz rank" in part
    starts = [[each.started_by for each in node.processes] for node in planned.nodes]
    assert starts == [["agent", "launcher", "launcher"], ["relay", *["launcher"] * 3]]


@EVERY
def test_hosts_are_told_by_address_and_started_through_the_relay(mpi):
    words = command(hosts(mpi))
    assert not {"gpu1", "gpu2"} & set(words)
    assert any("10.0.0.1" in word for word in words)
    assert any("10.0.0.2" in word for word in words)
    assert any(word.endswith(f"{HOME}/0/relay") for word in words)


@EVERY
def test_one_host_needs_no_network(mpi):
    planned = plan(hosts(mpi, (2,)))
    words = planned.head.processes[0].argv
    assert any("localhost" in word for word in words)
    assert not any("10.0.0.1" in word or "eth0" in word for word in words)
    assert not [name for name in ranks(planned)[0].defaults if "TCP" in name or "UCX" in name]


@pytest.mark.parametrize("mpi", ["openmpi4", "openmpi5"])
def test_open_mpi_binds_to_no_cores_unless_the_user_says_so(mpi):
    assert follows(command(hosts(mpi)), "--bind-to", "none")
    own = ("--map-by", "slot:PE=2")
    words = command(hosts(mpi), options={"arguments": own})
    assert follows(words, *own)
    assert "--bind-to" not in words


def test_intel_mpi_binds_to_no_cores_unless_the_user_says_so():
    assert plan(hosts("intelmpi")).head.processes[0].env["I_MPI_PIN"] == "off"
    own = plan(hosts("intelmpi"), env={"I_MPI_PIN_DOMAIN": "numa"}).head.processes[0].env
    assert own == {"I_MPI_PIN_DOMAIN": "numa"}


def test_only_the_head_starts_daemons_however_many_there_are():
    """What another host wants to start cannot be relayed."""
    for mpi, words in {
        "openmpi4": ("--mca", "plm_rsh_no_tree_spawn", "1"),
        "openmpi5": ("--prtemca", "plm_ssh_no_tree_spawn", "1"),
        "intelmpi": ("-branch-count", "40"),
    }.items():
        assert follows(command(hosts(mpi, (1,) * 40)), *words)


def test_messages_keep_to_the_interface_between_the_hosts():
    planned = plan(hosts("openmpi5"))
    assert ranks(planned)[0].defaults["OMPI_MCA_btl_tcp_if_include"] == "eth0"
    assert ranks(planned)[0].defaults["UCX_NET_DEVICES"] == "eth0"
    assert follows(planned.head.processes[0].argv, "--prtemca", "prte_if_include", "eth0")
    fast = plan(hosts("openmpi5", facts={"infiniband": True}))
    assert "UCX_NET_DEVICES" not in ranks(fast)[0].defaults


@pytest.mark.parametrize(
    ("network", "mpi", "names"),
    [
        ("tcp", "openmpi4", {"OMPI_MCA_pml": "ob1", "UCX_NET_DEVICES": "eth0"}),
        ("tcp", "mpich", {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0", "NCCL_IB_DISABLE": "1"}),
        ("infiniband", "openmpi5", {"OMPI_MCA_pml": "ucx"}),
        ("infiniband", "intelmpi", {}),
    ],
)
def test_messages_keep_to_the_network_that_was_asked_for(network, mpi, names):
    there = {"infiniband": {"ports": {"mlx5_0:1": "ACTIVE"}}}
    rank = ranks(plan(hosts(mpi, facts=there), interconnect=network))[0]
    assert rank.defaults.items() >= names.items()
    both = {**rank.defaults, **rank.env}
    tells = both.get("NCCL_DEBUG_FILE") == f"{HOME}/0/logs/network-nccl-%p.log"
    assert tells is (network == "infiniband")
    assert ("UCX_NET_DEVICES" in both) is (network == "tcp")
    alone = ranks(plan(hosts(mpi, (2,), facts=there), interconnect=network))[0]
    assert not (alone.defaults.keys() | alone.env.keys()) & {*names, "NCCL_DEBUG"}


def test_the_user_s_way_of_messages_counts():
    own = {"options": {"arguments": ("--mca", "pml", "cm")}, "interconnect": "infiniband"}
    assert "OMPI_MCA_pml" not in ranks(plan(**own))[0].defaults


def test_what_libraries_tell_of_their_network_is_not_hushed():
    plan(env={"NCCL_DEBUG": "WARN"})
    with pytest.raises(PlanError, match="env sets NCCL_DEBUG, by which a library tells"):
        plan(env={"NCCL_DEBUG": "WARN"}, interconnect="infiniband")


def test_hosts_may_have_interfaces_of_different_names():
    offers = hosts("openmpi4")
    offers[1] = hosts("openmpi4", (2, 2), addresses={"10.0.0.2": "ens7"})[1]
    planned = plan(offers)
    words = planned.head.processes[0].argv
    assert follows(words, "--mca", "oob_tcp_if_include", "eth0,ens7")
    assert ranks(planned)[3].defaults["OMPI_MCA_btl_tcp_if_include"] == "ens7"
    assert ranks(planned)[0].defaults["OMPI_MCA_btl_tcp_if_include"] == "eth0"


@pytest.mark.parametrize(
    "said",
    [
        {"options": {"arguments": ("--mca", "btl_tcp_if_exclude", "lo")}},
        {"env": {"OMPI_MCA_btl_tcp_if_include": "10.1.0.0/16"}},
        {"host_env": {"gpu2": {"OMPI_MCA_btl_tcp_if_exclude": "docker0"}}},
    ],
    ids=["argument", "variable", "variable of a host"],
)
def test_the_user_s_interface_counts_however_it_is_spelled(said):
    assert "OMPI_MCA_btl_tcp_if_include" not in ranks(plan(hosts(), **said))[0].defaults


def test_mpirun_and_its_daemons_get_only_what_an_mpi_reads():
    env = {"HF_TOKEN": "secret", "OMPI_MCA_btl": "^openib", "PATH": "/opt/mpi/bin:/usr/bin"}
    planned = plan(env=env)
    for node in planned.nodes:
        assert set(node.processes[0].env) == {"OMPI_MCA_btl", "PATH"}
    assert ranks(planned)[3].env["HF_TOKEN"] == "secret"


def test_a_rank_has_the_torch_set_and_what_scripts_of_clusters_read():
    planned = plan(hosts(slots=(1, 2)))
    sets = [rank.env for rank in ranks(planned)]
    assert [(each["RANK"], each["LOCAL_RANK"], each["NODE_RANK"]) for each in sets] == [
        ("0", "0", "0"), ("1", "0", "1"), ("2", "1", "1"),
    ]  # fmt: skip
    assert [(each["CROSS_RANK"], each["CROSS_SIZE"]) for each in sets] == [
        ("0", "2"), ("1", "2"), ("0", "1"),
    ]  # fmt: skip
    assert {each["AZ_BATCH_MASTER_NODE"] for each in sets} == {"10.0.0.1:20001"}
    assert {each["AZ_BATCHAI_MPI_MASTER_NODE"] for each in sets} == {"10.0.0.1"}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (Program("script", "t.py", ("-x",)), ("python3", "-m", "mpi4py", "t.py", "-x")),
        (Program("module", "pkg.t"), ("python3", "-m", "mpi4py", "-m", "pkg.t")),
        (Program("command", ("./run",)), None),
    ],
    ids=["script", "module", "command"],
)
def test_python_runs_through_mpi4py_so_that_an_exception_aborts(program, expected):
    assert {rank.with_mpi4py for rank in ranks(plan(program=program))} == {expected}


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("-np", "nnodes="),
        ("--hostfile", "hosts="),
        ("-x", "env="),
        ("-genv", "env="),
        ("--allow-run-as-root", "allow_run_as_root=True"),
        ("-wdir", "source"),
        ("plm_rsh_agent", "our own connections"),
        ("-launcher-exec", "our own connections"),
        (":", "command="),
    ],
)
def test_what_the_plan_says_is_refused_as_an_argument(word, instead):
    with pytest.raises(PlanError, match=f"mpirun_arguments: {word} .*{instead}"):
        plan(options={"arguments": ("--verbose", word, "4")})


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_RANK", "PMI_SIZE"])
def test_what_mpirun_tells_a_rank_is_refused_as_a_variable(name):
    with pytest.raises(PlanError, match=f"gpu2 sets {name}"):
        plan(host_env={"gpu2": {name: "0"}})


def test_a_program_among_the_arguments_of_mpirun_is_refused():
    with pytest.raises(PlanError, match="begin with 'true', which mpirun would take"):
        command(options={"arguments": ("true",)})


def test_more_ranks_than_slots_are_refused_with_the_numbers_unless_that_is_meant():
    """Case B54: the host list and the number of processes did not agree."""
    with pytest.raises(PlanError, match=r"nproc_per_node=4, but it has 1 slot .*oversubscribe"):
        plan(hosts(slots=(1, 1)), nproc_per_node=4)
    assert plan(hosts(slots=(1, 1)), nproc_per_node=4, oversubscribe=True).world_size == 8


def test_root_is_refused_unless_allowed_and_then_allowed_on_all_hosts():
    offers = hosts("openmpi5", facts={"uid": 0})
    with pytest.raises(PlanError, match=r"gpu1, gpu2 is root.*allow_run_as_root=True"):
        plan(offers)
    allowed = plan(offers, options={"allow_run_as_root": True})
    for node in allowed.nodes:
        assert node.processes[0].env["PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


@pytest.mark.parametrize(
    ("offers", "options", "told"),
    [
        (hosts(facts={"mpirun": {"why": "no mpirun"}}), {}, "gpu1: no mpirun; gpu2: no mpirun"),
        ([hosts()[0], hosts("mpich")[1]], {}, r"gpu1: Open MPI 4.1.4 .*; gpu2: MPICH 5.0.2 "),
        (hosts(), {"family": "mpich"}, r"mpi='mpich', but the hosts have Open MPI 4.1.4"),
        (hosts(ssh_address="10.0.0.9"), {}, "gpu1 and gpu2 have the same address 10.0.0.9"),
        (hosts(root="/home/ada b"), {}, "gpu1: Open MPI cannot have a blank"),
        (hosts(ssh_address="fd00::1"), {}, "gpu1: an mpirun is told hosts as .* IPv4 address"),
    ],
    ids=["none", "different", "another", "one address", "blank", "IPv6"],
)
def test_hosts_that_mpirun_cannot_join_are_refused(offers, options, told):
    """Case B50: a program that is missing is named, and where."""
    with pytest.raises(PlanError, match=told):
        plan(offers, options=options)


def test_the_plan_names_its_mpirun():
    assert "  ranks are started by Open MPI 4.1.4 (/opt/mpi/bin/mpirun)" in plan().describe()
