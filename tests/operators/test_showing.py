"""What the web page is told before a job runs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_training import launchers
from distributed_training.errors import SlotsBusy
from distributed_training.operators.showing import ENVIRONMENTS, Showing
from distributed_training.run.job import JobRef
from tests.offers import offer, spec

SECRET = "hf_s3cr3t"


class Ti(SimpleNamespace):
    """A task instance that keeps what is pushed, as JSON."""

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep it."""
        self.pushed[key] = json.loads(json.dumps(value, allow_nan=False))


@pytest.fixture
def ti() -> Ti:
    return Ti(pushed={})


@pytest.fixture
def showing(ti: Ti) -> Showing:
    return Showing(ti, print)


def planned(showing: Showing, ranks: int = 2, **fields: Any) -> None:
    asked = spec(nproc_per_node=ranks, **fields)
    offers = [offer("gpu1", slots=ranks), offer("gpu2", slots=ranks)]
    plan = launchers.plan(asked, offers)
    showing.planned(plan, offers, JobRef.of(plan, 100.0))


def test_a_plan_is_shown_with_its_ranks_which_wait(showing: Showing, ti: Ti) -> None:
    planned(showing)
    shown = ti.pushed["training"]
    assert (shown["state"], shown["world_size"]) == ("preparing", 4)
    assert [rank["state"] for rank in shown["ranks"]] == ["waiting"] * 4
    plan = ti.pushed["training_plan"]
    assert plan["launcher"] == "process"
    assert "4 ranks on 2 nodes" in plan["lines"][0]
    assert [row["host"] for row in plan["preflight"]] == ["gpu1", "gpu2"]
    assert plan["environment"]["3"]["RANK"] == "3"


def test_no_secret_is_shown_whole_or_in_part(showing: Showing, ti: Ti) -> None:
    env = {"HF_TOKEN": SECRET, "URL": f"https://me:{SECRET}@host", "PLAIN": "x"}
    planned(showing, env=env, secrets=(SECRET[:4], SECRET, ""))
    assert SECRET[:4] not in json.dumps(ti.pushed)
    shown = ti.pushed["training_plan"]["environment"]["0"]
    assert (shown["HF_TOKEN"], shown["URL"]) == ("***", "https://me:***@host")
    assert shown["PLAIN"] == "x"


def test_of_a_large_job_some_environments_are_shown(showing: Showing, ti: Ti) -> None:
    planned(showing, ranks=128)
    environments = ti.pushed["training_plan"]["environment"]
    assert "0" in environments
    assert 8 < len(environments) < 256
    assert len(json.dumps(environments)) < 2 * ENVIRONMENTS


def test_who_waits_is_shown_with_what_for(showing: Showing, ti: Ti) -> None:
    showing.waiting(spec(since=7.0), "gpu1: slots in use: cpu-0 held by job other")
    shown = ti.pushed["training"]
    assert (shown["state"], shown["since"]) == ("waiting", 7.0)
    assert "held by job other" in shown["message"]


def test_a_job_that_never_ran_is_shown_with_its_reason(showing: Showing, ti: Ti) -> None:
    showing.failed(spec(), SlotsBusy("gpu1: slots in use", host="gpu1"))
    shown = ti.pushed["training"]
    assert shown["state"] == "failed"
    assert (shown["verdict"]["kind"], shown["verdict"]["host"]) == ("SlotsBusy", "gpu1")


def test_a_page_that_takes_nothing_is_not_the_job_s_affair() -> None:
    def refuse(key: str, value: Any) -> None:
        raise RuntimeError("the bucket is full")

    told: list[str] = []
    showing = Showing(SimpleNamespace(xcom_push=refuse), told.append)
    showing.failed(spec(), SlotsBusy("gpu1: slots in use"))
    assert "the bucket is full" in told[0]
