"""Bring back what a job left on its hosts: result, metrics, outputs and logs."""

from __future__ import annotations

import asyncio
import math
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from distributed_training.errors import DeliveryFailed, OutputMissing, TrainingError
from distributed_training.run.agents import HostAgent, on_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distributed_training.agent.host.masking import Hide
    from distributed_training.run.job import JobRef, NodeRef

_SPOOL = 64 << 20  # bytes held in memory before a file takes over


class Folder(Protocol):
    """Where files go: a local path, or any object store that knows these three operations."""

    def __truediv__(self, name: str) -> Folder:
        """Return what is called ``name`` below it."""
        ...

    def mkdir(self, *, parents: bool, exist_ok: bool) -> None:
        """Make it, where folders are things that are made."""
        ...

    def open(self, mode: Literal["wb"]) -> IO[bytes]:
        """Open it as a file, to be written."""
        ...

    @property
    def parent(self) -> Folder:
        """The folder that it is in."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """What rank 0 wrote for the tasks that follow: a result, and the last value of each metric."""

    result: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what is not as it was meant


async def result(ref: JobRef, agents: Mapping[str, HostAgent]) -> Result:
    """Return what rank 0 wrote to its result and metrics files, as JSON that everybody reads.

    :raises OutputMissing: the result file is there but is not JSON, or too large
    """
    host = ref.head.host.name
    answer = await agents[host].call("result", **_node(ref, ref.head))
    if answer["result_error"]:
        raise OutputMissing(
            f"{host}: what rank 0 wrote to $DT_RESULT_FILE {answer['result_error']}", host=host
        )
    nulls: list[str] = []
    metrics = {key: _finite(value, key, nulls) for key, value in answer["metrics"].items()}
    value = _finite(answer["result"], "result", nulls)
    notes = [*answer["notes"], *(f"{each} is no number in JSON: it is null" for each in nulls)]
    return Result(value, metrics, tuple(f"{host}: {note}" for note in notes))


def _finite(value: Any, name: str, nulls: list[str]) -> Any:
    """Return a value with null for NaN and infinities, which go to ``nulls``."""
    if isinstance(value, dict):
        return {key: _finite(item, f"{name}.{key}", nulls) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item, f"{name}[{n}]", nulls) for n, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        nulls.append(f"{name}={value}")
        return None
    return value


async def outputs(
    ref: JobRef, agents: Mapping[str, HostAgent], paths: Sequence[str], into: Folder
) -> dict[str, str]:
    """Bring files and folders from the head into ``into``; return where each one is now.

    :param paths: relative to the working directory of the ranks, or absolute; of a pattern, each
        match is named in the answer
    :raises OutputMissing: some of them cannot be had; those that can were brought
    :raises DeliveryFailed: ``into`` did not take them
    """
    head = ref.head
    found, faults = await _fetch(ref, agents, head, "work", paths, into)
    if faults:
        raise OutputMissing(
            f"{head.host.name}: the job ended well, but not all of its outputs can be had: "
            f"{'; '.join(faults)}. Paths are relative to the working directory of rank 0",
            host=head.host.name,
        )
    return {asked: str(_below(into, name)) for asked, name in found.items()}


async def logs(
    ref: JobRef, agents: Mapping[str, HostAgent], into: Folder, hide: Hide = str
) -> None:
    """Bring the whole log of every rank into ``into``, a folder for each host.

    :param hide: masks secrets in a line
    :raises TrainingError: not all of them could be brought; those that could were
    """

    async def bring(node: NodeRef) -> None:
        name = node.host.name
        _, faults = await _fetch(ref, agents, node, "logs", ["*"], into / name, hide)
        if faults:
            raise OutputMissing(f"{name}: {'; '.join(faults)}", host=name)

    await on_all(ref.nodes, bring)


async def _fetch(
    ref: JobRef,
    agents: Mapping[str, HostAgent],
    node: NodeRef,
    base: str,
    paths: Sequence[str],
    into: Folder,
    hide: Hide | None = None,
) -> tuple[dict[str, str], list[str]]:
    """Bring files; return the names of what was asked for, and what of it cannot be had."""
    request = {**_node(ref, node), "base": base, "paths": list(paths)}
    host = node.host.name
    try:
        with tempfile.SpooledTemporaryFile(_SPOOL) as spool:
            async with agents[host].stream("fetch", **request) as stream:
                async for chunk in stream.chunks():
                    await asyncio.to_thread(spool.write, chunk)
                answer = stream.answer
            spool.seek(0)
            brought = await asyncio.to_thread(_unpack, spool, into, hide)
    except TrainingError:
        raise
    except Exception as error:  # an object store raises what its library likes
        raise DeliveryFailed(
            f"{host}: what the job left could not be brought to {into}: {reason(error)}. "
            "A retry brings it without training anew",
            host=host,
        ) from error
    if brought != answer["files"]:
        raise DeliveryFailed(
            f"{host}: {brought} of {answer['files']} files came before the host's agent fell "
            "silent. A retry brings them without training anew",
            host=host,
        )
    return answer["found"], [f"{fault['path']}: {fault['why']}" for fault in answer["faults"]]


def reason(error: Exception) -> str:
    """Return what is wrong in words: not every exception brings some."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _unpack(spool: IO[bytes], into: Folder, hide: Hide | None) -> int:
    """Write the files and folders of a tar below ``into``, and nowhere else; count the files."""
    files = 0
    with tarfile.open(fileobj=spool, mode="r|") as tar:
        for member in tar:
            if ".." in PurePosixPath(member.name).parts or member.name.startswith("/"):
                continue
            target = _below(into, member.name)
            folder = target if member.isdir() else target.parent
            folder.mkdir(parents=True, exist_ok=True)
            if content := tar.extractfile(member):
                with target.open("wb") as file:
                    for piece in _pieces(content, hide):
                        file.write(piece)
                files += 1
    return files


def _below(into: Folder, name: str) -> Folder:
    """Return the place of a member of a tar."""
    for part in PurePosixPath(name).parts:
        into = into / part
    return into


def _pieces(content: IO[bytes], hide: Hide | None) -> Iterator[bytes]:
    """Yield a file as it is, or what may be seen of each of its lines."""
    if hide in (None, str):
        while chunk := content.read(1 << 20):
            yield chunk
        return
    for line in content:
        yield hide(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _node(ref: JobRef, node: NodeRef) -> dict[str, Any]:
    return {"job": ref.job_id, "attempt": ref.attempt, "node": node.node_rank}
