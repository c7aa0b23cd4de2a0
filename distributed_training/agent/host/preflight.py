"""What must hold on a host before any rank starts."""

from __future__ import annotations

import os
import time

from .children import scrubbed, spawn
from .errors import problem
from .execution import too_large
from .exits import exit_of
from .facts import user_name
from .folders import source_path
from .gpus import gpu_memory_held, gpu_processes, in_use
from .logind import logind
from .logs import TAIL_LINES, log_end
from .mpi import mismatch
from .network import knock
from .node import own_variables
from .processes import Process
from .programs import missing_python, versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .node import Node
    from .records import Json

    Check = Callable[[], Json | None]


REACH_TIMEOUT = 15.0
GPU_RELEASE_TIMEOUT = 10.0  # a driver frees memory a little after the last process has ended


class Preflight:
    """What must hold on a host before any rank starts."""

    def __init__(self, node: Node, request: Json) -> None:
        self.node = node
        self.request = request
        self.work = node.at("work")
        self.env = scrubbed(request.get("scrub") or ())
        self.env.update(request.get("setup_env") or {})
        self.env.update(own_variables(node))

    def problems(self) -> list[Json]:
        """Return everything that does not hold, all at once.

        The head is reached for only if nothing else is wrong: where it fails, its own findings
        must not be the only ones that are told.
        """
        found = self._run((self.source, self.occupied, logind))
        setup = self.request.get("setup")
        if not setup:
            found += self.program()
        found = found or self._run((self.reach,))
        if found or not setup:
            return found
        # What the setup would have made cannot be missed if it never ran or failed.
        return self._run((self.setup,)) or self.program()

    def versions(self) -> Json:
        """Return what the ranks' interpreter has."""
        python = self.request.get("python")
        return versions(python, self.env, self.work) if python else {}

    def program(self) -> list[Json]:
        """Look for what the ranks are to run."""
        files = map(self.file, self.request.get("check_files") or ())
        return self._run((self.python, self.packages, self.mpi)) + [each for each in files if each]

    @staticmethod
    def _run(checks: Sequence[Check]) -> list[Json]:
        return [found for found in (check() for check in checks) if found]

    def source(self) -> Json | None:
        """Unpack the source into the working directory."""
        sha = self.request.get("source")
        try:
            if sha:
                unpack(source_path(self.node.root, sha), self.work)
            os.makedirs(os.path.join(self.work, "outputs"), 0o700, exist_ok=True)
        except FileNotFoundError:
            return problem(
                f"source {sha} is not on this host", "it was never sent", "send it again"
            )
        except (OSError, EOFError, ValueError) as error:
            do = "free space there, or set work_dir to another folder"
            return problem(f"cannot unpack the source into {self.work}", str(error), do)
        return None

    def reach(self) -> Json | None:
        """Connect to the head, which listens since it has its port."""
        if not self.request.get("reach"):
            return None
        address, port = self.request["reach"]
        until = time.monotonic() + REACH_TIMEOUT
        why = "timed out"
        while time.monotonic() < until:
            try:
                knock(address, port, until - time.monotonic())
                return None
            except ConnectionRefusedError as error:
                why = str(error.strerror)
                time.sleep(0.1)
            except OSError as error:
                why = error.strerror or str(error)
                break
        do = "give the head an address= that this host reaches, or open its firewall"
        return problem(f"cannot reach the head at {address} port {port}", why, do)

    def occupied(self) -> Json | None:
        """Look for processes of nobody's job on the wanted GPUs, once the last job's are gone."""
        wanted = {name[4:] for name in self.request.get("slots") or () if name.startswith("gpu-")}
        until = time.monotonic() + GPU_RELEASE_TIMEOUT
        strangers = gpu_processes(wanted)
        while not any(map(Process.find, strangers)) and time.monotonic() < until:
            if not strangers and not gpu_memory_held(wanted):
                return None
            time.sleep(0.5)
            strangers = gpu_processes(wanted)
        if not strangers:  # memory of no process may be the display's
            return None
        return in_use(strangers)

    def setup(self) -> Json | None:
        """Run the setup script, by bash as a command that is given as text."""
        log = self.node.at("logs", "setup.log")
        argv = ["bash", "-c", self.request["setup"]]
        try:
            pid = spawn(argv, self.env, self.work, log)
        except OSError as error:
            why, do = f"bash cannot be executed: {error.strerror}", "install bash on this host"
            large = too_large(argv, self.env, error)
            return problem("the setup script cannot run", *(large or (why, do)))
        code, name = exit_of(os.waitpid(pid, 0)[1])
        if code == 0:
            return None
        tail = log_end(log, self.node.hide)[-TAIL_LINES:]
        why = "\n".join([f"it ended with {name or f'exit code {code}'}; its last lines:", *tail])
        return problem("the setup script failed", why, "correct it")

    def python(self) -> Json | None:
        """Find the interpreter of the ranks."""
        python = self.request.get("python")
        return missing_python(python, self.env, self.work) if python else None

    def packages(self) -> Json | None:
        """See that the ranks' interpreter has what the launcher starts."""
        wanted = self.request.get("packages") or ()
        found = self.versions() if wanted else {}
        lacking = [name for name in wanted if found and name not in found]
        if not lacking:
            return None
        python, names = self.request["python"], ", ".join(lacking)
        do = f"set python= to one that has it, or install it: {python} -m pip install {names}"
        return problem(f"{names} is missing", f"{python} does not have it", do)

    def mpi(self) -> Json | None:
        """See that the ranks' MPI is that of mpirun."""
        mpirun = self.request.get("mpirun")
        return mismatch(self.request.get("python"), mpirun, self.env) if mpirun else None

    def file(self, name: str) -> Json | None:
        """Find a file that the ranks need."""
        path = os.path.join(self.work, name)
        if not os.path.exists(path):
            do = "check its name, and that source_dir holds it and does not ignore it"
            if os.path.isabs(name):
                do = "check its name, and that this host has it; it is sent if it is in source_dir"
            return problem(f"{name} is missing", f"there is no {path}", do)
        if not os.access(path, os.R_OK):
            return problem(
                f"{name} cannot be read", f"permission denied for {user_name()}", "chmod it"
            )
        if os.stat(path).st_mode & 0o100 and os.statvfs(path).f_flag & os.ST_NOEXEC:
            do = "set work_dir to a folder on a file system that allows programs"
            return problem(
                f"{name} cannot be run", f"{path} is on a file system mounted noexec", do
            )
        return None


def unpack(archive: str, work: str) -> None:
    """Unpack a source snapshot as this user's own files."""
    import tarfile

    os.utime(archive)  # gc counts from the last use
    with tarfile.open(archive) as tar:
        # The caller may run any program here anyway, and the snapshot's own modes must survive.
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        members = tar.getmembers()
        for member in members:
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        tar.extractall(work, members)
