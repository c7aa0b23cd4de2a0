"""Where a task brings what its job left."""

from __future__ import annotations

import pytest

from distributed_training.operators.delivery import at_home


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("~/models", "/home/ada/models"),
        ("/srv/~/models", "/srv/~/models"),
        ("models", "models"),
        ("s3://models//~x", "s3://models//~x"),
    ],
)
def test_a_tilde_is_the_home_of_who_runs_the_task(
    path: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert at_home(path) == meant
