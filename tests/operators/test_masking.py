"""What Airflow holds to be secret is found in what goes to the hosts."""

from __future__ import annotations

import pytest
from airflow.sdk.log import mask_secret

from distributed_training.operators.masking import secrets_in

KNOWN = "kn0wn-s3cret"


@pytest.fixture(autouse=True)
def _told() -> None:
    """Airflow's masker knows a secret, as of a connection."""
    mask_secret(KNOWN)


def test_a_variable_of_a_sensitive_name_is_secret_whatever_it_holds() -> None:
    assert secrets_in([{"HF_TOKEN": "hf_abc\nline two", "LR": "0.1"}], []) == ("hf_abc\nline two",)


def test_a_secret_is_found_within_a_value_by_itself() -> None:
    env = {"STORE": f"s3://user:{KNOWN}@host/{KNOWN}"}
    assert secrets_in([env], []) == (KNOWN,)


def test_both_the_whole_and_the_part_of_a_sensitive_variable_are_secret() -> None:
    assert set(secrets_in([{"DB_PASSWORD": f"x{KNOWN}y"}], [])) == {KNOWN, f"x{KNOWN}y"}


@pytest.mark.parametrize(
    "arguments", [f"--token={KNOWN}", ["--token", KNOWN], {"token": f"a{KNOWN}"}]
)
def test_a_secret_in_an_argument_is_found(arguments: object) -> None:
    assert secrets_in([], [None, arguments]) == (KNOWN,)


def test_what_is_no_secret_is_none() -> None:
    assert secrets_in([{"EPOCHS": 5, "EMPTY": ""}], [["--lr", 0.1], None, True]) == ()


def test_a_secret_in_megabytes_is_found_at_once() -> None:
    text = "lr=0.1 " * 300_000
    assert secrets_in([{"A": f"{text}{KNOWN}{text}{KNOWN}"}], [f"{text}{KNOWN}"]) == (KNOWN,)
