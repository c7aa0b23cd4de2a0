"""What calls a function on a host, and which values travel."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_training.agent import function_caller
from distributed_training.agent.function import plain


@pytest.mark.parametrize(
    ("value", "there"),
    [
        ({"a": [1, 2.5, None, True, "é\ud800"]}, None),
        ((1, (2,)), [1, [2]]),
        (namedtuple("Point", "x y")(1, 2), [1, 2]),
        (OrderedDict(a=range(2)), {"a": [0, 1]}),
        ([np.float32(0.5), np.int64(3), np.float64(2)], [0.5, 3, 2]),
        ([np.array(4), np.bool_(True)], [4, True]),
    ],
)
def test_a_value_arrives_as_json_has_it(value, there):
    assert json.loads(json.dumps(plain(value, "x"))) == (value if there is None else there)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [0, {1, 2}]}, r"^x\['a'\]\[1\] is set, .*float\(loss\), array.tolist\(\)"),
        ({1: "a"}, "^x has the key 1, and JSON has text alone for keys"),
        (np.zeros(2), "^x is numpy.ndarray"),
        (np.longdouble(1), "^x is numpy.longdouble"),
        (b"bytes", "^x is bytes"),
        (datetime.date(2026, 1, 1), "^x is datetime.date"),
        (Path("a"), "^x is pathlib"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_has_not_is_named(value, words):
    with pytest.raises(TypeError, match=words):
        plain(value, "x")


@pytest.fixture
def call(tmp_path):
    """Call a function as a rank does."""
    package = tmp_path / "dt_function"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(function_caller())

    def run(body: str, rank: int = 0, *, multiple: bool = False, **kwargs: Any) -> Any:
        (package / "f.py").write_text(f"def f(**kwargs):\n    {body}\n")
        arguments = {"args": [], "kwargs": kwargs, "multiple_outputs": multiple}
        own = {"DT_ARGUMENTS": json.dumps(arguments), "DT_RANK": str(rank)}
        return subprocess.run(
            [sys.executable, "-m", "dt_function", "f"],
            cwd=tmp_path,
            env={**os.environ, **own, "DT_RESULT_FILE": str(tmp_path / "result.json")},
            text=True,
            capture_output=True,
            check=False,
        )

    return run


def result(tmp_path):
    return json.loads((tmp_path / "result.json").read_text())


def test_what_rank_0_returns_is_kept(call, tmp_path):
    assert call("return kwargs['a'] * 2", rank=1, a=3).returncode == 0
    assert not list(tmp_path.glob("result*"))
    assert call("return kwargs['a'] * 2", a=3).returncode == 0
    assert result(tmp_path) == 6
    assert call("pass").returncode == 0
    assert result(tmp_path) is None


def test_a_function_sees_neither_its_arguments_nor_its_name_as_those_of_a_program(call, tmp_path):
    call("import os, sys; return [len(sys.argv), 'DT_ARGUMENTS' in os.environ]")
    assert result(tmp_path) == [1, False]


def test_what_cannot_be_kept_fails_the_rank(call, tmp_path):
    failed = call("return {'a': {1, 2}}")
    assert failed.returncode == 1
    assert "TypeError: f()['a'] is set" in failed.stderr
    failed = call("return 1", multiple=True)
    assert "TypeError: f() is int; multiple_outputs=True takes a dict" in failed.stderr
    assert not list(tmp_path.glob("result*"))
    assert call("return {'a': 1}", multiple=True).returncode == 0


def test_an_exception_is_that_of_the_function(call):
    failed = call("raise KeyError('no such digit')")
    assert failed.returncode == 1
    *_, where, line, last = failed.stderr.splitlines()
    assert where.endswith('dt_function/f.py", line 2, in f')
    assert (line.strip(), last) == ("raise KeyError('no such digit')", "KeyError: 'no such digit'")
