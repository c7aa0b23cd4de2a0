"""Rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# The folders at the top that a wheel places inside the package.
LINKED = tuple(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"])

RENAMED = "distributed_training/agent/host/"  # on a host it is only `host`


def tracked_modules() -> list[str]:
    """Return the Python files that git tracks or would add, apart from the linked copies."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "-z", "--exclude-standard", "*.py"]
    listing = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    return sorted(name for name in listing.split("\0") if (ROOT / name).is_file())


MODULES = tracked_modules()


def test_every_linked_folder_stands_in_the_package() -> None:
    package = ROOT / "distributed_training"
    links = {path.name: str(path.readlink()) for path in package.iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in LINKED}


def test_every_list_of_linked_folders_names_them_all() -> None:
    tool = PROJECT["tool"]
    inside = [f"distributed_training/{name}" for name in LINKED]
    assert tool["hatch"]["build"]["exclude"] == [f"/{path}" for path in inside]
    assert set(inside) <= set(tool["pyright"]["exclude"])
    for paths in (
        tool["hatch"]["build"]["targets"]["wheel"]["only-include"],
        tool["coverage"]["run"]["source"],
        tool["pyright"]["include"],
        tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"],
    ):
        assert set(LINKED) <= set(paths)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_opens_with_one_sentence(module: str) -> None:
    docstring = ast.get_docstring(parse(module)) or ""
    assert docstring.partition("\n\n")[0].endswith((".", ":"))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_by_the_one_path(module: str) -> None:
    """A second path, such as `import operators`, would make a second copy of every class."""
    on_hosts = module.startswith(RENAMED)
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.ImportFrom):
            relative = "relative" if node.level else "absolute"
            ours = node.level or (node.module or "").startswith("distributed_training")
            assert not ours or bool(node.level) == on_hosts, f"{module}:{node.lineno}: {relative}"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        second = set(LINKED) & {name.partition(".")[0] for name in names}
        assert not second, f"{module}:{node.lineno}: import distributed_training.{second.pop()}"


def parse(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_bytes(), module)
