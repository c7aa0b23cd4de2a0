"""Bring back what a job left on its hosts: result, metrics, outputs and logs."""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from distributed_training.errors import OutputMissing
from distributed_training.run.agents import HostAgent, on_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distributed_training.agent.agent import Hide
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


async def result(ref: JobRef, agents: Mapping[str, HostAgent]) -> Result:
    """Return what rank 0 wrote to its result and metrics files.

    :raises OutputMissing: the result file is there but is not JSON
    """
    host = ref.head.host.name
    answer = await agents[host].call("result", **_node(ref, ref.head))
    if answer["result_error"]:
        raise OutputMissing(
            f"{host}: rank 0 wrote something to $DT_RESULT_FILE that is not JSON: "
            f"{answer['result_error']}; write it with json.dump",
            host=host,
        )
    return Result(answer["result"], answer["metrics"])


async def outputs(
    ref: JobRef, agents: Mapping[str, HostAgent], paths: Sequence[str], into: Folder
) -> dict[str, str]:
    """Bring files and folders from the head into ``into``; return where each one is now.

    :param paths: relative to the working directory of the ranks, or absolute; ``*`` is a pattern
    :raises OutputMissing: some of them are not there; those that are were brought
    """
    head = ref.head
    missing, _ = await _fetch(ref, agents, head, "work", paths, into)
    if missing:
        raise OutputMissing(
            f"{head.host.name}: the job ended well but left no {', '.join(missing)}; paths are "
            "relative to the working directory of rank 0 on the head",
            host=head.host.name,
        )
    return {path: str(into / path.strip("/")) for path in paths}


async def logs(
    ref: JobRef, agents: Mapping[str, HostAgent], into: Folder, hide: Hide = str
) -> None:
    """Bring the whole log of every rank into ``into``, a folder for each host.

    :param hide: masks secrets in a line
    """

    async def bring(node: NodeRef) -> None:
        await _fetch(ref, agents, node, "logs", ["*"], into / node.host.name, hide)

    await on_all(ref.nodes, bring)


async def _fetch(
    ref: JobRef,
    agents: Mapping[str, HostAgent],
    node: NodeRef,
    base: str,
    paths: Sequence[str],
    into: Folder,
    hide: Hide | None = None,
) -> tuple[list[str], list[str]]:
    request = {**_node(ref, node), "base": base, "paths": list(paths)}
    with tempfile.SpooledTemporaryFile(_SPOOL) as spool:
        async with agents[node.host.name].stream("fetch", **request) as stream:
            async for chunk in stream.chunks():
                await asyncio.to_thread(spool.write, chunk)
            answer = stream.answer
        spool.seek(0)
        await asyncio.to_thread(_unpack, spool, into, hide)
    return answer["missing"], answer["found"]


def _unpack(spool: IO[bytes], into: Folder, hide: Hide | None) -> None:
    """Write the regular files of a tar below ``into``, and nowhere else."""
    with tarfile.open(fileobj=spool, mode="r|") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            parts = PurePosixPath(member.name).parts
            if content is None or ".." in parts or member.name.startswith("/"):
                continue
            target = into
            for part in parts:
                target = target / part
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                for piece in _pieces(content, hide):
                    file.write(piece)


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
