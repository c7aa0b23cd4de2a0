"""The text of a function as hosts run it, and what of a function cannot run there."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import symtable
from typing import TYPE_CHECKING, Any

from distributed_training.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

# A host knows no name of the DAG's file, and a signature may well name types from there.
_HEAD = "from __future__ import annotations"
_BLOCK = "if True:  # the function is indented in its own file, too"


def source_of(function: Callable[..., Any]) -> str:
    """Return the file that hosts import a function from, each line where its own file has it.

    So a traceback has the lines of the DAG's file. All decorators are left out.

    :raises PlanError: the function cannot run where nothing of its own file is
    """
    _check_kind(function)
    lines, first = _lines(function)
    indented = lines[0][:1].isspace()
    node = _parsed([*([_BLOCK] if indented else []), *lines], function)
    _check_names(node)
    start = node.lineno - 1 - indented  # behind the decorators
    head = [_HEAD, *([_BLOCK] if indented else [])]
    blank = [""] * (first + start - 1 - len(head))
    return "\n".join([head[0], *blank, *head[1:], *lines[start:], ""])


def _check_kind(function: Callable[..., Any]) -> None:
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function) or function.__code__.co_name == "<lambda>":
        raise PlanError(f"{name} is no function made by `def`, and only such a one can be sent")
    if hasattr(function, "__wrapped__"):
        raise PlanError(
            f"{name}: another decorator below that of the task has wrapped it, and hosts would "
            "not know that one; do inside the function what it does"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PlanError(f"{name} is async; a rank calls it as it is: use asyncio.run inside of it")
    if inspect.isgeneratorfunction(function):
        raise PlanError(f"{name} has a `yield`, so that calling it does nothing; return a value")


def _lines(function: Callable[..., Any]) -> tuple[list[str], int]:
    """Return the lines of a function with its decorators, and the number of the first."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise PlanError(
            f"{function.__name__}: its source cannot be read: {error}; write it into a DAG's file"
        ) from error
    return [line.rstrip("\r\n") for line in lines], first


def _parsed(lines: list[str], function: Callable[..., Any]) -> ast.FunctionDef:
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef):
            if node.name != function.__name__:
                break
            return node
    raise PlanError(
        f"{function.__name__} is not what stands in its file as `def {function.__name__}`; give "
        "the decorator a function as it was written"
    )


def _check_names(function: ast.FunctionDef) -> None:
    """Refuse names that are known only where the function was written."""
    if unknown := sorted(_used_from_outside(function)):
        what = "is" if len(unknown) == 1 else "are"
        raise PlanError(
            f"{function.name} uses {', '.join(unknown)}, which {what} made outside of it, and "
            "hosts get the function alone; import or define that inside of it, give it as an "
            "argument, or import it from a module in source_dir"
        )


def _used_from_outside(function: ast.FunctionDef) -> set[str]:
    bare = ast.unparse(_Bare().visit(copy.deepcopy(function)))
    scopes = [symtable.symtable(bare, function.name, "exec")]
    used, made = set(), {"__file__"}
    for scope in scopes:
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            if symbol.is_global() or scope is scopes[0]:
                used |= {symbol.get_name()} if symbol.is_referenced() else set()
                made |= {symbol.get_name()} if _is_made(symbol) else set()
    return used - made - set(dir(builtins))


def _is_made(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


class _Bare(ast.NodeTransformer):
    """Takes out what is not evaluated on a host: decorators of the task, and annotations."""

    _is_outer = True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if self._is_outer:
            node.decorator_list, self._is_outer = [], False
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], node.value), node))
