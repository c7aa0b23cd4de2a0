"""A function as a task: it goes to the hosts, every rank calls it, rank 0's value comes back."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from distributed_training.agent import function_caller
from distributed_training.agent.function import plain
from distributed_training.decorators.source import source_of
from distributed_training.errors import PlanError
from distributed_training.operators.arguments import given
from distributed_training.operators.base import TrainingOperator
from distributed_training.operators.masking import secrets_in
from distributed_training.plan import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from airflow.sdk import Context

PACKAGE = "dt_function"  # beside what source_dir holds
JOB_KEY = "job"
LIMIT = 128_000  # Linux takes 128 KiB for a variable and its name
# Each says what else a rank could run, or what it is told.
MEANINGLESS = ("script", "module", "command", "arguments", "local_rank_argument")


class FunctionOperator(DecoratedOperator, TrainingOperator):
    """Calls a function in every rank of a job; subclasses choose the launcher.

    Arguments and result travel as JSON: the Pythons of Airflow and of hosts differ, and what a host
    sends must not be run. The task returns what rank 0 returns. What other operators return is in
    the XCom ``job``, apart from the result.

    :param python_callable: function that is called; it goes to the hosts alone, without its file
    """

    template_fields: Collection[str] = (  # type: ignore[assignment]  # the bases differ
        *DecoratedOperator.template_fields, *TrainingOperator.template_fields,
    )  # fmt: skip

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(python_callable=python_callable, **kwargs)
        self._text = source_of(python_callable)

    def package(self) -> Mapping[str, str]:
        """Return the package with the function and what calls it."""
        return {
            f"{PACKAGE}/__init__.py": "",
            f"{PACKAGE}/__main__.py": function_caller(),
            f"{PACKAGE}/{self.python_callable.__name__}.py": self._text,
        }

    def program_of(self, context: Context | Mapping[str, Any]) -> Program:
        """Return the call of the function.

        :raises PlanError: another program is given as well, or an argument cannot travel
        """
        for name in MEANINGLESS:
            if given(getattr(self, name, None)) not in (None, (), [], {}):
                raise PlanError(f"{name}= has no meaning where ranks run a function; take it out")
        name = self.python_callable.__name__
        return Program("module", PACKAGE, (name,), values=self._call(name, context))

    def returns(self, left: dict[str, Any]) -> dict[str, Any]:
        """Return what goes to XCom, by its key, of what the job left."""
        report = {name: value for name, value in left.items() if name != "result"}
        return {JOB_KEY: report, BaseXCom.XCOM_RETURN_KEY: left["result"]}

    def secrets(self) -> tuple[str, ...]:
        """Return the values that must not be seen in a log."""
        texts = {name: value for name, value in self.op_kwargs.items() if isinstance(value, str)}
        arguments = secrets_in([texts], [self.op_args, self.op_kwargs])
        return tuple(sorted({*super().secrets(), *arguments}))

    def _call(self, name: str, context: Context | Mapping[str, Any]) -> str:
        """Return the arguments of a function as JSON."""
        try:
            args = plain(self.op_args, "op_args")
            kwargs = {**self.op_kwargs, **self._from_context(context)}
            kwargs = {key: plain(value, key) for key, value in kwargs.items()}
            inspect.signature(self.python_callable).bind(*args, **kwargs)
        except TypeError as error:
            raise PlanError(f"{name} cannot be called: {error}") from None
        call = {"args": args, "kwargs": kwargs, "multiple_outputs": self.multiple_outputs}
        text = json.dumps(call)
        if len(text) > LIMIT:
            raise PlanError(
                f"{name}: its arguments are {len(text)} bytes as JSON, and {LIMIT} can be handed "
                "to a process; put what is large into a file in source_dir, or where hosts read it"
            )
        return text

    def _from_context(self, context: Context | Mapping[str, Any]) -> dict[str, Any]:
        """Return what parameters that are named as parts of Airflow's context stand for.

        A dry run has no context, so they are None.
        """
        signature = inspect.signature(self.python_callable)
        bound = signature.bind_partial(*self.op_args, **self.op_kwargs).arguments
        wanted = signature.parameters.keys() & KNOWN_CONTEXT_KEYS - bound.keys()
        return {name: context.get(name) for name in wanted}
