"""Write counting as tokens, in MDS files in `counting/`: a task that runs before train_mpt.py."""

import numpy as np
from streaming import MDSWriter

LENGTH, FIRST, NUMBERS = 16, 3, 10  # token 3 is "one", as the tokenizer has it


def main() -> None:
    """Write texts that count from each number on, and after ten from one again."""
    with MDSWriter(out="counting/train", columns={"tokens": "ndarray:int32"}) as out:
        for start in range(320):
            tokens = FIRST + (start + np.arange(LENGTH, dtype=np.int32)) % NUMBERS
            out.write({"tokens": tokens})


if __name__ == "__main__":
    main()
