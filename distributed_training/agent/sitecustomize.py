"""Runs before the program of every rank: the agent learns where it stands, and its group's size."""

# Any Python 3 of a user's may run this, so it keeps to what all of them have, and imports nothing
# that takes time.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Former = Callable[[Any, Callable[[int], None]], None]

HERE = os.path.dirname(os.path.abspath(__file__))
STACKS_SIGNAL = 57  # SIGRTMAX - 7, which nobody uses; the agent has the same


def stacks() -> None:
    """Write the stacks of all threads on a signal, even while C code runs."""
    import faulthandler

    path = os.path.join(HERE, f"stacks-{os.getpid()}")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    # The agent finds the file among those that this process has open, as long as this very program
    # runs: one that replaced it would not survive the signal.
    os.unlink(path)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)


# Groups: a library that could have made one of all ranks is noted when it is imported, with 0, and
# again with the number of processes in the group that it made.


def note(library: str, size: int) -> None:
    """Tell the agent of a library, and of the group it made."""
    path = os.path.join(os.path.dirname(HERE), "ranks", os.environ["DT_RANK"] + ".groups")
    with open(path, "a") as file:  # by all processes of a rank: a short line is written whole
        file.write(f"{library} {size}\n")


def after(method: "Callable[..., Any]", then: "Callable[..., None]") -> "Callable[..., Any]":
    """Return a method that calls ``then`` with its own arguments once it has done its work."""
    import functools

    @functools.wraps(method)
    def wrapped(*arguments: "Any", **options: "Any") -> "Any":
        result = method(*arguments, **options)
        attempt(lambda: then(*arguments, **options))
        return result

    return wrapped


def torch_forms(module: "Any", tell: "Callable[[int], None]") -> None:
    """Watch ``torch.distributed.init_process_group``."""
    formed = after(module.init_process_group, lambda *_, **__: tell(module.get_world_size()))
    module.init_process_group = formed


def mpi_forms(module: "Any", tell: "Callable[[int], None]") -> None:
    """Ask mpi4py, which forms its group while it is imported."""
    if module.Is_initialized():
        tell(module.COMM_WORLD.Get_size())


def horovod_forms(module: "Any", tell: "Callable[[int], None]") -> None:
    """Watch ``horovod.*.init``."""
    basics = module.HorovodBasics
    basics.init = after(basics.init, lambda self, *_, **__: tell(self.size()))


def jax_forms(module: "Any", tell: "Callable[[int], None]") -> None:
    """Watch ``jax.distributed.initialize``, and tell it its numbers."""
    state = module.State

    def then(self: "Any", *_: "Any", **__: "Any") -> None:
        tell(self.num_processes)
        fail_at_once()

    state.initialize = numbered(after(state.initialize, then))


def fail_at_once() -> None:
    """Let an exception end the process: JAX, at its exit, would wait for the others for minutes."""
    import atexit

    former, failed = sys.excepthook, []

    def note_failure(*error: "Any") -> None:
        failed.append(error)
        former(*error)

    def leave() -> None:
        if failed:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    sys.excepthook = note_failure
    atexit.register(leave)  # it runs before all that JAX has registered while it was imported


# What JAX reads from the variables of no cluster but those that it knows.
JAX_NUMBERS = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}


def numbered(method: "Callable[..., Any]") -> "Callable[..., Any]":
    """Return a method that has the numbers of the environment, where its caller gives none."""
    import functools
    import inspect

    signature = inspect.signature(method)

    @functools.wraps(method)
    def wrapped(*arguments: "Any", **options: "Any") -> "Any":
        call = signature.bind(*arguments, **options)
        for name, variable in JAX_NUMBERS.items():
            if call.arguments.get(name) is None and variable in os.environ:
                call.arguments[name] = int(os.environ[variable])
        return method(*call.args, **call.kwargs)

    return wrapped


def tensorflow_forms(module: "Any", tell: "Callable[[int], None]") -> None:
    """Watch ``tf.distribute.MultiWorkerMirroredStrategy``."""
    strategy = module.CollectiveAllReduceExtended
    strategy.__init__ = after(strategy.__init__, lambda self, *_, **__: tell(self._num_workers))


def accelerate_forms(module: "Any", tell: "Callable[[int], None]") -> None:
    """Watch ``accelerate.Accelerator``: on a CPU it may join torch's group, and train alone."""
    accelerator = module.Accelerator
    made = after(accelerator.__init__, lambda self, *_, **__: tell(self.num_processes))
    accelerator.__init__ = made


# By the module that forms the group: the name that people know, and how to learn of it.
FORMERS = {
    "torch.distributed.distributed_c10d": ("torch.distributed", torch_forms),
    "mpi4py.MPI": ("mpi4py", mpi_forms),
    "horovod.common.basics": ("horovod", horovod_forms),
    "jax._src.distributed": ("jax.distributed", jax_forms),
    "tensorflow.python.distribute.collective_all_reduce_strategy": (
        "tensorflow", tensorflow_forms,
    ),
    "accelerate.accelerator": ("accelerate", accelerate_forms),
}  # fmt: skip


class Loader:
    """Loads a module as its own loader does, and then looks at it."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def exec_module(self, module: "Any") -> None:
        """Run the module."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        library, former = FORMERS[module.__name__]
        attempt(lambda: note(library, 0))
        attempt(lambda: former(module, lambda size: note(library, size)))


class Finder:
    """Finds the modules that form groups, by all the other finders."""

    def __init__(self) -> None:
        self._awaited = set(FORMERS)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return how to load a module if it forms groups."""
        if name not in self._awaited:
            return None
        self._awaited.discard(name)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)  # type: ignore[assignment]  # it is one in all but name
        return spec


def groups() -> None:
    """Notice whether the rank becomes a member of a group."""
    if "DT_RANK" in os.environ:  # it is no launcher
        sys.meta_path.insert(0, Finder())  # the same


def attempt(hook: "Callable[[], None]") -> None:
    """Run a hook; whatever goes wrong in it must not keep the user's program from running."""
    try:
        hook()
    except Exception:
        import traceback

        with open(os.path.join(HERE, "errors"), "a") as file:
            file.write(traceback.format_exc())


def chain() -> None:
    """Run the sitecustomize that would have run without this one, as if that had been so."""
    ours = sys.modules.pop("sitecustomize")
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != HERE]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":
    try:
        for each in (stacks, groups):
            attempt(each)
    except OSError:  # the disk is full: then nobody learns what went wrong
        pass
    chain()
