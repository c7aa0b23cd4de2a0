"""Host lists and selections, as users write and paste them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_training.errors import PlanError
from distributed_training.fleet import Fleet, Host, format_hosts, parse_hosts, read_hostfile

if TYPE_CHECKING:
    from pathlib import Path

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHM56"
FULL = Host(
    name="gpu1",
    slots=4,
    address="10.0.0.1",
    ssh="203.0.113.7",
    port=2222,
    user="alice",
    gpus=("0", "1", "2", "3"),
    labels=("a100", "rack1"),
    host_key=KEY,
)
FULL_LINE = (
    "alice@gpu1 slots=4 address=10.0.0.1 ssh=203.0.113.7 port=2222 gpus=0,1,2,3 "
    f'labels=a100,rack1 host_key="{KEY}"'
)
FULL_OBJECT = {
    "name": "gpu1",
    "slots": 4,
    "address": "10.0.0.1",
    "ssh": "203.0.113.7",
    "port": 2222,
    "user": "alice",
    "gpus": [0, 1, 2, 3],
    "labels": ["a100", "rack1"],
    "host_key": KEY,
}
JSON = (
    '[{"name": "gpu1", "slots": 2, "gpus": "4,GPU-8a56", "user": null}, '
    '{"name": "alice@gpu2", "port": "2222"}, "gpu3:4"]'
)


def refused(hosts: Any) -> str:
    with pytest.raises(PlanError) as caught:
        parse_hosts(hosts)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        pytest.param("gpu1", [Host("gpu1")], id="name alone"),
        pytest.param("gpu1 slots=8", [Host("gpu1", 8)], id="DeepSpeed"),
        pytest.param("gpu1 slots=8 max_slots=16", [Host("gpu1", 8)], id="Open MPI"),
        pytest.param("gpu1 slots = 8 max-slots = 8", [Host("gpu1", 8)], id="Open MPI, spaced"),
        pytest.param("gpu1:4", [Host("gpu1", 4)], id="MPICH"),
        pytest.param("a:4,b:4", [Host("a", 4), Host("b", 4)], id="Horovod"),
        pytest.param("a:4, b", [Host("a", 4), Host("b")], id="Horovod, spaced"),
        pytest.param("gpu1:4 slots=4", [Host("gpu1", 4)], id="same count twice"),
        pytest.param("[fe80::1%eth0]:4", [Host("fe80::1%eth0", 4)], id="IPv6"),
        pytest.param("a address=fe80::1", [Host("a", address="fe80::1")], id="IPv6 address"),
        pytest.param("a address=[fe80::1]", [Host("a", address="fe80::1")], id="in brackets"),
        pytest.param("a gpus=GPU-8a56,01", [Host("a", gpus=("GPU-8a56", "1"))], id="UUID"),
        pytest.param("a host_key='" + KEY + " me@a'", [Host("a", host_key=KEY)], id="key comment"),
        pytest.param(FULL_LINE, [FULL], id="all keys"),
    ],
)
def test_a_line_means_the_same_whoever_writes_it(text: str, hosts: list[Host]) -> None:
    assert list(parse_hosts(text)) == hosts


def test_comments_blank_lines_and_line_ends_do_not_matter() -> None:
    """B66."""
    hosts = parse_hosts("# head\n\na slots=2\r\n  b   slots=2  # note\n\n")
    assert hosts == (Host("a", 2), Host("b", 2))


def test_users_are_for_ssh_alone() -> None:
    """B68."""
    hosts = parse_hosts("root@10.0.0.7 slots=1\nalice@10.0.0.10 slots=2")
    assert [(host.name, host.ssh_host, host.user) for host in hosts] == [
        ("10.0.0.7", "10.0.0.7", "root"),
        ("10.0.0.10", "10.0.0.10", "alice"),
    ]


def test_a_user_may_hold_an_at_sign() -> None:
    assert parse_hosts("alice@corp@gpu1") == (Host("gpu1", user="alice@corp"),)


def test_objects_say_the_same_as_lines() -> None:
    assert parse_hosts([FULL_OBJECT]) == parse_hosts(FULL_LINE) == (FULL,)


def test_json_text_is_read_as_a_list_of_objects_and_lines() -> None:
    assert parse_hosts(JSON) == (
        Host("gpu1", 2, gpus=("4", "GPU-8a56")),
        Host("gpu2", port=2222, user="alice"),
        Host("gpu3", 4),
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("b lots=8", "unknown key 'lots'; did you mean 'slots'?"),
        ("b ports=22", "did you mean 'port'?"),
        ("b slots=0", "'0' is not a whole number from 1 on"),
        ("b slots=-1", "not a whole number"),
        ("b slots=2.5", "not a whole number"),
        ("b slots=", "not a whole number"),
        ("b:", "not a whole number"),
        ("b:2 slots=3", "given twice, as 2 and as 3"),
        ("b slots=2 slots=2", "slots is given twice"),
        ("bob@b user=eve", "user is given twice"),
        ("b slots=3 gpus=0,1", "more than the 2 GPUs"),
        ("b gpus=0,0", "something stands twice"),
        ("b gpus=0-3", "index or UUID of a GPU"),
        ("b slots=4 max_slots=2", "slots=4 is more than max_slots=2"),
        ("b max_slots=2", "write slots= too"),
        ("b port=70000", "not a port"),
        ("b host_key=AAAA", "a public key"),
        ("b host_key=ssh-ed25519 AAAA", "'AAAA' is not key=value"),
        ('b host_key="ssh-ed25519 AAAA', "never closed"),
        ("slots=4", "a host's name is missing"),
        ("a,,b", "a host's name is missing"),
        ("a,b slots=2", "write one host a line"),
        ("a b", "'b' is not key=value"),
        ("::1 slots=2", "in brackets"),
        ("-oProxyCommand slots=2", "no host name"),
        ("bob@ slots=2", "no host name"),
    ],
)
def test_what_is_unclear_is_refused_with_its_line(line: str, why: str) -> None:
    """B66: number, text and reason."""
    message = refused(f"# head\nfirst slots=2\n\n{line}\n")
    assert "hosts, line 4" in message
    assert line in message
    assert why in message


def test_a_host_given_twice_is_refused_with_both_lines() -> None:
    message = refused("gpu1 slots=2\ngpu2\nGPU1 slots=2")
    assert "line 3 ('GPU1 slots=2')" in message
    assert "line 1 ('gpu1 slots=2')" in message


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"name": "h1", "ports": 22}, "did you mean 'port'?"),
        ({"name": "h1", "slots": True}, "True is not a whole number"),
        ({"name": "h1", "slots": 2.0}, "2.0 is not a whole number"),
        ({"name": "h1", "gpus": []}, "not a list"),
        ({"host": "h1"}, "did you mean 'name'?"),
    ],
)
def test_a_wrong_object_is_refused_with_its_name(entry: dict[str, Any], why: str) -> None:
    """B21."""
    message = refused([{"name": "h0"}, entry])
    assert "hosts, entry 2 ('h1')" in message
    assert why in message


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param("h1 slots=2 password=hunter2 lots=3", id="line"),
        pytest.param([{"host": "h1", "user": "u", "password": "hunter2"}], id="object"),
        pytest.param("h1 private_key=hunter2", id="key"),
    ],
)
def test_credentials_in_a_host_list_are_refused_and_not_repeated(hosts: Any) -> None:
    """B21."""
    message = refused(hosts)
    assert "h1" in message
    assert "the connection holds passwords and keys" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ('[{"name": "a", "slots": 1, "slots": 2}]', "slots is given twice"),
        ('[{"name": "a"', "not the JSON that it starts as"),
        ('{"name": "a"}', "a JSON list is needed"),
        ('[["a"]]', "not list"),
        ([3], "not int"),
        ('[{"name": 3}]', "as text"),
        ("", "no host is given"),
        ("# nothing", "no host is given"),
        ("[]", "no host is given"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(hosts: Any, why: str) -> None:
    assert why in refused(hosts)


def test_a_missing_hostfile_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B73: never a run on this machine alone."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError, match=f"{tmp_path}/hostfile_123.*No such file"):
        read_hostfile("hostfile_123")


def test_a_hostfile_without_hosts_is_an_error(tmp_path: Path) -> None:
    """B73."""
    (tmp_path / "hosts").write_text("# none yet\n")
    with pytest.raises(PlanError, match="no host is given"):
        read_hostfile(tmp_path / "hosts")


def test_a_wrong_line_of_a_hostfile_is_named_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes("\ufeffa slots=2\r\nb lots=8\r\n".encode())
    with pytest.raises(PlanError, match=f"{file}, line 2"):
        read_hostfile(file)


# --- selections

FLEET = Fleet(parse_hosts("gpu1 slots=2\ngpu2 slots=4\n[fe80::1] gpus=6,7\nspare"), "gpus")


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (None, {"gpu1": (), "gpu2": (), "fe80::1": (), "spare": ()}),
        ("gpu1@gpu2:0,2", {"gpu1": (), "gpu2": (0, 2)}),
        (["gpu2", "gpu1:1"], {"gpu2": (), "gpu1": (1,)}),
        ("[fe80::1]:1 @ spare:9", {"fe80::1": (1,), "spare": (9,)}),
        ("gpu2:3,1", {"gpu2": (3, 1)}),
    ],
)
def test_a_selection_keeps_its_order(selection: Any, chosen: dict[str, tuple[int, ...]]) -> None:
    hosts = FLEET.select(selection).hosts
    assert {host.name: host.places for host in hosts} == chosen
    assert [host.name for host in hosts] == list(chosen)


@pytest.mark.parametrize(
    ("selection", "why"),
    [
        ("gpu3", "connection 'gpus' has no host 'gpu3', only gpu1, gpu2, fe80::1, spare"),
        ("alice@gpu2", "without user and port"),
        ("gpu1@gpu1:0", "gpu1 is selected twice"),
        ("gpu1:0,0", "slot 0 of gpu1 is selected twice"),
        ("gpu1,gpu2", "join several with @"),
        ("gpu1:0-1", "not a selection"),
        ("", "not a selection"),
        ([], "no host is selected"),
    ],
)
def test_a_selection_never_shrinks_silently(selection: Any, why: str) -> None:
    with pytest.raises(PlanError, match="hosts=") as caught:
        FLEET.select(selection)
    assert why in caught.value.message


@pytest.mark.parametrize("selection", ["gpu1:2,3", "[fe80::1]:2,3"])
def test_a_slot_beyond_the_count_is_explained(selection: str) -> None:
    """B71."""
    with pytest.raises(PlanError) as caught:
        FLEET.select(selection)
    message = caught.value.message
    assert "has no slot 3: slots are indexes below the count, and it has 2" in message
    assert "slots=2 gpus=2,3" in message


def test_a_slot_is_checked_again_once_the_count_is_known() -> None:
    """B71: a host without `slots=` tells its GPUs only later."""
    (spare,) = FLEET.select("spare:0,9").hosts
    assert spare.chosen_slots(10) == (0, 9)
    with pytest.raises(PlanError, match="spare has no slot 9"):
        spare.chosen_slots(8)


def test_a_second_selection_stays_within_the_first() -> None:
    first = FLEET.select("gpu2:0,2")
    assert first.select("gpu2").hosts[0].places == (0, 2)
    with pytest.raises(PlanError, match="left only slots 0, 2 of gpu2"):
        first.select("gpu2:1")


# --- all that can be written


def spelled(alphabet: str) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=1, max_size=12)


def some(items: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(items, max_size=4, unique=True).map(tuple)


addresses = spelled("aZ09_") | spelled("a.-").map("x{}".format) | st.ip_addresses().map(str)
hosts = st.builds(
    Host,
    name=addresses,
    slots=st.none() | st.integers(1, 10**9 - 1),
    address=st.none() | addresses,
    ssh=st.none() | addresses,
    port=st.none() | st.integers(1, 65535),
    user=st.none() | spelled("aZé0_.@\\$!"),
    gpus=some(st.integers(0, 99).map(str) | spelled("0af-").map("GPU-{}".format)),
    labels=some(spelled("aZ0_.:/+-")),
    host_key=st.none() | spelled("aZ0+/").map("ssh-ed25519 {}==".format),
).filter(lambda host: not host.gpus or (host.slots or 0) <= len(host.gpus))
fleets = st.lists(hosts, min_size=1, unique_by=lambda host: host.name.lower()).map(tuple)


@given(fleets)
def test_a_fleet_written_down_reads_as_it_was(fleet: tuple[Host, ...]) -> None:
    assert parse_hosts(format_hosts(fleet)) == fleet


@given(st.text() | st.text(alphabet="ab@:,=[] \n#\"'{}0123"))
def test_any_text_is_hosts_or_a_plan_error(text: str) -> None:
    with suppress(PlanError):
        assert parse_hosts(text)
