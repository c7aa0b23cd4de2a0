"""``@task.torch_distributed``: a function in every rank of TorchDistributedOperator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from distributed_training.decorators.base import FunctionOperator
from distributed_training.operators.torch import TorchDistributedOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow.sdk.bases.decorator import TaskDecorator


class TorchFunctionOperator(FunctionOperator, TorchDistributedOperator):
    """Calls a function in every rank of a job of :class:`TorchDistributedOperator`.

    Parameters: those of that class without the program, see :class:`FunctionOperator`.
    """

    template_fields: Collection[str] = (  # type: ignore[assignment]  # the bases differ
        *DecoratedOperator.template_fields, *TorchDistributedOperator.template_fields,
    )  # fmt: skip
    custom_operator_name = "@task.torch_distributed"


def torch_distributed_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Make a task of a function, which every rank calls.

    :param python_callable: the function
    :param multiple_outputs: push each value of a dict that it returns by its key, too
    :param kwargs: of :class:`TorchFunctionOperator`
    """
    return task_decorator_factory(
        python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=TorchFunctionOperator,
        **kwargs,
    )
