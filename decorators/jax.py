"""``@task.jax_distributed``: a function in every rank of JaxDistributedOperator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from distributed_training.decorators.base import FunctionOperator
from distributed_training.operators.jax import JaxDistributedOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow.sdk.bases.decorator import TaskDecorator


class JaxFunctionOperator(FunctionOperator, JaxDistributedOperator):
    """Calls a function in every rank of a job of :class:`JaxDistributedOperator`.

    Parameters: those of that class without the program, see :class:`FunctionOperator`.
    """

    template_fields: Collection[str] = (  # type: ignore[assignment]  # the bases differ
        *DecoratedOperator.template_fields, *JaxDistributedOperator.template_fields,
    )  # fmt: skip
    custom_operator_name = "@task.jax_distributed"


def jax_distributed_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Make a task of a function, which every rank calls.

    :param python_callable: the function
    :param multiple_outputs: push each value of a dict that it returns by its key, too
    :param kwargs: of :class:`JaxFunctionOperator`
    """
    return task_decorator_factory(
        python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=JaxFunctionOperator,
        **kwargs,
    )
