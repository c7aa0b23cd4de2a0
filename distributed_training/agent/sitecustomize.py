"""Runs before the program of every rank: lets the agent ask a rank where it stands."""

# Any Python 3 of a user's may run this, so it keeps to what all of them have, and imports nothing
# that takes time.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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
        for each in (stacks,):
            attempt(each)
    except OSError:  # the disk is full: then nobody learns what went wrong
        pass
    chain()
