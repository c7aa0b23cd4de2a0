"""Whether the file of a checkpoint is whole, told by its ends."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how its files began before version 1.6
ZIP_END, ZIP_END_SIZE = b"PK\5\6", 22
HEADER_LIMIT = 100 << 20  # what safetensors itself allows


def torch_flaws(path: str) -> Iterator[str]:
    """Look at what torch.save wrote, a zip archive, or pickle alone did."""
    head, tail = ends_of(path)
    if not head:
        yield "is empty"
    elif head.startswith(b"PK"):
        if not tail.startswith(ZIP_END):
            yield "is cut short: the end of the zip archive is missing"
    elif head == OLD_TORCH:
        yield "has torch's old format, which does not show whether it is whole"
    elif not head.startswith(b"\x80"):
        yield "is nothing that torch saves"
    elif not tail.endswith(b"."):
        yield "is cut short: the end of the pickle is missing"


def safetensors_flaws(path: str) -> Iterator[str]:
    """Look whether the file is as long as its header says."""
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= min(size, HEADER_LIMIT) else b""
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        end = max((each["data_offsets"][1] for each in tensors.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        yield "has a broken header"
    else:
        if size != 8 + length + end:
            yield f"has {size} of {8 + length + end} bytes"


def ends_of(path: str) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a file."""
    with open(path, "rb") as file:
        head = file.read(len(OLD_TORCH))
        file.seek(max(0, file.seek(0, os.SEEK_END) - ZIP_END_SIZE))
        return head, file.read()


FILES = {
    ".pt": torch_flaws,
    ".pth": torch_flaws,
    ".bin": torch_flaws,
    ".safetensors": safetensors_flaws,
}
