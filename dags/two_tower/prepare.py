"""Write who liked what, as MDS files of MosaicML Streaming in `likes/`."""

from __future__ import annotations

import argparse
import itertools
import random

from streaming import MDSWriter

USERS, ITEMS = 32, 32


def main() -> None:
    """Write most pairs to train on, and the others to judge by."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    pairs = list(itertools.product(range(USERS), range(ITEMS)))
    random.Random(parser.parse_args().seed).shuffle(pairs)
    write("likes/train", pairs[:800])
    write("likes/unseen", pairs[800:])


def write(folder: str, pairs: list[tuple[int, int]]) -> None:
    """Write pairs in several shards: a user likes the items of the user's own kind."""
    columns = {"id": "int", "user": "int", "item": "int", "liked": "int"}
    with MDSWriter(out=folder, columns=columns, size_limit=4096) as out:
        for number, (user, item) in enumerate(pairs):
            liked = int(user % 2 == item % 2)
            out.write({"id": number, "user": user, "item": item, "liked": liked})


if __name__ == "__main__":
    main()
