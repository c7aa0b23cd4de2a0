"""Whether a checkpoint is whole: what each framework writes, and in which order."""

from __future__ import annotations

import os
import re

from .checkpoint_files import FILES, ends_of, torch_flaws
from .files import read_json, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .records import Json

    Flaws = Callable[["Checkpoint"], Iterator[str]]


# Whether one is whole is told by names, sizes and the ends of files: it may have 100 GB.
MARKERS = (".complete", "COMPLETE")
STEP = re.compile(r"step[=_-]?(\d+)|(?<![\d.])(?<!-v)(\d+)(?:-v\d+)?(?:\.(?:pt|pth|ckpt))?$")
INDEX_END = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"
METADATA_LIMIT = 64 << 20
TRAINER_STATE = "trainer_state.json"
WEIGHTS = re.compile(r"(adapter_|pytorch_)?model(_fsdp)?\.(safetensors|bin)(\.index\.json)?")
STATES = re.compile(r"((?:bf16_|fp16_)?zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")


def step_of(name: str) -> int | None:
    """Return the step that a name tells."""
    match = STEP.search(name)
    return int(match.group(1) or match.group(2)) if match else None


class Checkpoint:
    """What may be a checkpoint: a folder, a file, or files whose names begin alike."""

    def __init__(self, path: str, beside: Sequence[str] = ()) -> None:
        self.changed = os.stat(path).st_mtime
        self.is_folder = os.path.isdir(path)
        self.folder = path if self.is_folder else os.path.dirname(path)
        self.file = os.path.basename(path)
        self.path = path[: -len(".index")] if path.endswith(".index") else path
        self.name = os.path.basename(self.path)
        self.step = step_of(self.name)
        self.beside = beside

    def names(self) -> list[str]:
        """Return the names of its files and folders."""
        if self.is_folder:
            return sorted(os.listdir(self.folder))
        start = self.name + "."
        return [self.file, *(each for each in self.beside if each.startswith(start))]

    def at(self, name: str) -> str:
        """Return the path of one of them."""
        return os.path.join(self.folder, name)

    def marked(self) -> bool:
        """Tell whether its script says that it is complete."""
        return self.is_folder and any(os.path.exists(self.at(each)) for each in MARKERS)

    def layout(self) -> tuple[str, Flaws]:
        """Return what wrote it, and what finds its flaws."""
        signs = [self.file]
        if self.is_folder:
            signs = [f"{self.name}/", *(f"{self.name}/{each}" for each in self.names())]
        for layout, sign, flaws in LAYOUTS:
            if any(re.fullmatch(sign, each) for each in signs):
                return layout, flaws
        return "", unknown

    def flaw(self, marking: bool) -> str:
        """Return why it is not complete, nothing if it is."""
        try:
            if self.marked():
                return ""
            if marking and self.is_folder:
                return f"has no marker ({' or '.join(MARKERS)}), and others there have one"
            return next(self.layout()[1](self), "")
        except Exception as error:  # whatever a file holds, the offer must not fail for it
            return f"cannot be read: {getattr(error, 'strerror', None) or error}"

    def record(self) -> Json:
        """Return what the caller is told."""
        times = [os.lstat(self.at(each)).st_mtime for each in self.names()]
        layout = self.layout()[0] or "marked"
        newest = max(times, default=self.changed)
        return {"path": self.path, "step": self.step, "time": newest, "layout": layout}


def torch_file(it: Checkpoint) -> Iterator[str]:
    """Look at a file of torch.save, or of Lightning."""
    yield from torch_flaws(it.path)


def tensorflow(it: Checkpoint) -> Iterator[str]:
    """Look at an index and the data files that belong to it."""
    names = it.names()
    count = next((each.rpartition("-of-")[2] for each in names if ".data-" in each), "")
    if not count.isdigit():
        yield "has no data files"
    else:
        shards = (f"{it.name}.data-{shard:05}-of-{count}" for shard in range(int(count)))
        yield from missing(it, shards)
    if not ends_of(it.at(it.file))[1].endswith(INDEX_END):
        yield "its index is cut short"


def torch_distributed(it: Checkpoint) -> Iterator[str]:
    """Look at a folder of torch.distributed.checkpoint."""
    if ".metadata" not in it.names():
        yield "has no .metadata, which is written last"
    if not ends_of(it.at(".metadata"))[1].endswith(b"."):
        yield "its .metadata is cut short"
    with open(it.at(".metadata"), "rb") as file:
        needed = re.findall(rb"__\d+_\d+\.distcp", file.read(METADATA_LIMIT))
    yield from missing(it, (each.decode() for each in needed))
    yield from cut_short(it)


def deepspeed(it: Checkpoint) -> Iterator[str]:
    """Look at the folder of one step."""
    latest = read_text(os.path.join(os.path.dirname(it.path), "latest")).strip()
    if not latest:
        yield "has no file latest beside it, which is written last"
    if it.name != latest and (it.step is None or it.step >= (step_of(latest) or 0)):
        yield f"was not finished: the file latest beside it names {latest}"
    yield from missing_ranks(it)
    yield from cut_short(it)


def missing_ranks(it: Checkpoint) -> Iterator[str]:
    """Say which states are there for some ranks only."""
    kinds: dict[tuple[bool, str], set[tuple[int, int]]] = {}
    for match in filter(None, map(STATES.fullmatch, it.names())):
        zero, rank, part, kind = match.groups()
        kinds.setdefault((bool(zero), kind), set()).add((int(rank or 0), int(part)))
    if not kinds:
        yield "has no states"
    for (_, kind), there in kinds.items():
        whole = (1 + max(rank for rank, _ in there)) * (1 + max(part for _, part in there))
        if len(there) < whole:
            yield f"has {len(there)} of {whole} files of {kind} states"


def deepspeed_alone(it: Checkpoint) -> Iterator[str]:
    """Look at a folder for one step alone, as Lightning makes it."""
    latest = read_text(it.at("latest")).strip()
    if not latest or not os.path.isdir(it.at(latest)):
        yield f"its file latest names {latest or 'nothing'}, which is not there"
    yield from flaws_within(Checkpoint(it.at(latest)), deepspeed)


def hugging_face(it: Checkpoint) -> Iterator[str]:
    """Look at a folder of transformers' Trainer; DeepSpeed's or FSDP's may be in it."""
    names = it.names()
    if TRAINER_STATE not in names:
        yield f"has no {TRAINER_STATE}"
    if not read_json(it.at(TRAINER_STATE)):
        yield f"its {TRAINER_STATE} is cut short"
    weights = [each for each in names if WEIGHTS.fullmatch(each)]
    for index in (each for each in weights if each.endswith(".json")):
        shards = read_json(it.at(index)).get("weight_map")
        if not shards:
            yield f"its {index} is cut short"
        else:
            yield from missing(it, shards.values())
    yield from cut_short(it)
    for inner in (Checkpoint(it.at(each)) for each in names if os.path.isdir(it.at(each))):
        layout, flaws = inner.layout()
        if layout in ("DeepSpeed", "torch distributed"):
            weights.append(inner.name)
            yield from flaws_within(inner, flaws)
    if not weights:
        yield "has no weights"


def unknown(it: Checkpoint) -> Iterator[str]:
    """Say what would help."""
    yield f"has no layout that is known here, and no marker ({' or '.join(MARKERS)})"


def flaws_within(it: Checkpoint, flaws: Flaws) -> Iterator[str]:
    """Say in which folder the flaws are."""
    return (f"its folder {it.name} {each}" for each in flaws(it))


def missing(it: Checkpoint, wanted: Iterable[str]) -> Iterator[str]:
    """Say which of the files that it should have is not there."""
    lacking = sorted(set(wanted).difference(it.names()))
    if lacking:
        more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
        yield f"has no {lacking[0]}{more}"


def cut_short(it: Checkpoint) -> Iterator[str]:
    """Say which files in a folder are not whole."""
    for name in it.names():
        flaws = FILES.get(os.path.splitext(name)[1])
        if flaws:
            yield from (f"its {name} {each}" for each in flaws(it.at(name)))


LAYOUTS: Sequence[tuple[str, str, Flaws]] = (  # the first counts that a name, or one in it, shows
    ("torch file", r"[^/]+\.(pt|pth|ckpt)", torch_file),
    ("TensorFlow", r"[^/]+\.index", tensorflow),
    ("torch distributed", r".+/(\.metadata|.+\.distcp)", torch_distributed),
    ("DeepSpeed", r".+/.+_(model|optim)_states\.pt", deepspeed),
    ("Hugging Face", rf"checkpoint-\d+/|.+/{TRAINER_STATE}", hugging_face),
    ("DeepSpeed", r"global_step\d+/", deepspeed),
    ("DeepSpeed", r".+/latest", deepspeed_alone),
)
