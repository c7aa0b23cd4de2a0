"""What must have been learned; each check returns it in words, or raises WrongValue."""

from __future__ import annotations

import re
from typing import Any

from frameworks.row import HOSTS, RANKS, WrongValue

LIKES = 800  # samples that the two towers train on
MANY = 1000  # mpi4py has more tests than that: fewer were not found


def agreed(result: dict[str, Any]) -> None:
    """Check that the framework saw all ranks, and that their weights are the same."""
    seen, sums = result["result"]["world_size"], result["result"]["checksums"]
    if seen != RANKS or len(sums) != RANKS:
        raise WrongValue(f"{RANKS} ranks should have trained together, but {seen} did")
    if max(sums) - min(sums) > 1e-9:
        raise WrongValue(f"the ranks' weights differ: their sums are {sums}")


def averaged(result: dict[str, Any], ranks: int = RANKS) -> str:
    """Check that all ranks hold one slope, to which each one's own data alone would not lead.

    Rank r's data have the slope 2 r: ranks that train together learn the mean.
    """
    slopes, mean = result["result"]["slopes"], ranks - 1.0
    if len(slopes) != ranks or max(abs(slope - mean) for slope in slopes) > 0.01:
        raise WrongValue(f"each of {ranks} ranks should have learned {mean}, but it is {slopes}")
    if len(set(slopes)) > 1:
        raise WrongValue(f"the ranks' slopes differ: {slopes}")
    return f"slope {slopes[0]:.3f} on {ranks} ranks"


def passed(result: dict[str, Any]) -> str:
    """Check that all ranks learned the mean slope, and tell by which MPI."""
    library = re.match(r"\D*[\d.]+", " ".join(result["result"]["library"].split()))
    if library is None:
        raise WrongValue(f"no MPI calls itself {result['result']['library']!r}")
    return f"{averaged(result)}, {library[0]}"


def all_passed(result: dict[str, Any]) -> str:
    """Check that tests have run in all ranks, as many in each, and that none of them failed."""
    ranks = result["result"]["ranks"]
    bad = sorted({test for rank in ranks for test in rank["bad"]})
    if bad:
        raise WrongValue(f"{len(bad)} tests failed: {', '.join(bad)}")
    counts = {rank["ran"] for rank in ranks}
    if len(ranks) != HOSTS or len(counts) > 1 or max(counts) < MANY:
        raise WrongValue(f"a rank on each host should have run all tests, but they ran {counts}")
    skipped = max(rank["skipped"] for rank in ranks)
    return f"{max(counts)} tests on {len(ranks)} ranks, {skipped} not for this MPI"


def sharded(result: dict[str, Any]) -> str:
    """Check that each rank held its share of the weights, and that all learned the mean slope."""
    shares = result["result"]["shares"]
    if max(shares) > 1.5 / RANKS:
        raise WrongValue(f"each of {RANKS} ranks should hold {1 / RANKS} of the weights: {shares}")
    return f"{averaged(result)}, {max(shares):.2f} of the weights on each"


def classified(result: dict[str, Any]) -> str:
    """Check that reviews which were not trained on are told apart."""
    agreed(result)
    accuracy = result["result"]["accuracy"]
    if accuracy < 0.95:
        raise WrongValue(f"it should tell good reviews from bad ones, but its accuracy {accuracy}")
    return f"accuracy {accuracy:.2f}, equal weights"


def counted(result: dict[str, Any]) -> str:
    """Check that the model has learned to count."""
    agreed(result)
    said = result["result"]["said"].split()
    if said != ["six", "seven"]:
        raise WrongValue(f"after three four five it should go on with six seven, but says {said}")
    return "counts on: six seven, equal weights"


def served(result: dict[str, Any]) -> str:
    """Check that a parameter server held the slope that was learned."""
    slope, held_by = result["result"]["slope"], result["result"]["held_by"]
    if abs(slope - 3) > 0.01 or "/job:ps" not in held_by:
        raise WrongValue(f"a parameter server should hold 3, but {held_by} holds {slope}")
    return f"slope {slope:.3f} on a server"


def streamed(result: dict[str, Any]) -> str:
    """Check that unseen likes are known, and that every sample went to one rank, once."""
    agreed(result)
    told = result["result"]
    seen = sorted(sample for rank in told["seen"] for sample in rank)
    if seen != list(range(LIKES)) or not all(told["seen"]):
        raise WrongValue(
            f"the ranks should have shared {LIKES} samples in an epoch, but they saw {len(seen)}, "
            f"of them {len(set(seen))} different ones"
        )
    if told["accuracy"] < 0.95:
        raise WrongValue(f"it should know who likes what, but its accuracy is {told['accuracy']}")
    return f"accuracy {told['accuracy']:.2f}, {len(seen)} samples, each once"


def tracked(result: dict[str, Any]) -> str:
    """Check that the store has one run that ended well, with the loss of each epoch, and slopes."""
    told = result["result"]
    epochs, losses = int(told["params"]["epochs"]), told["losses"]
    if told["status"] != "FINISHED" or len(losses) != epochs or losses[-1] >= losses[0]:
        raise WrongValue(f"a finished run with {epochs} falling losses should be there: {told}")
    return f"{averaged(result)}, {len(losses)} losses in the store"
