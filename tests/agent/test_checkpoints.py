"""The newest complete checkpoint is found, and what looks newer is named with its flaw."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.agent.host.checkpoints import newest_checkpoint

if TYPE_CHECKING:
    from tests.agent.host import Host

Json = dict[str, Any]

SAVE = """
import torch, torch.distributed.checkpoint as distributed
state = {"weight": torch.arange(10000.0), "step": 3}
torch.save(state, "new.pt")
torch.save(state, "old.pt", _use_new_zipfile_serialization=False)
distributed.save(state, checkpoint_id="distributed", no_dist=True)
"""


@pytest.fixture(scope="session")
def saved(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what torch itself saves."""
    folder = tmp_path_factory.mktemp("saved")
    subprocess.run([torch_python, "-W", "ignore", "-c", SAVE], cwd=folder, check=True)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.mkdir()
    return path


def look(folder: Path) -> tuple[Json | None, dict[str, str]]:
    """Return the newest complete checkpoint, and why others are not."""
    answer = newest_checkpoint(str(folder))
    passed_over = answer["checkpoints_passed_over"]
    return answer["checkpoint"], {Path(each["path"]).name: each["why"] for each in passed_over}


def newest(folder: Path) -> str | None:
    """Return the name of the newest complete checkpoint."""
    found, _ = look(folder)
    return Path(found["path"]).name if found else None


def flaw(folder: Path) -> str:
    """Return what is wrong with the only checkpoint in a folder."""
    found, (why,) = look(folder)[0], look(folder)[1].values()
    assert found is None
    return why


def file(path: Path, data: bytes | str = b"PK\3\4weights" + b"PK\5\6" + bytes(18)) -> Path:
    """Write a file, a whole one of torch if nothing else is said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def cut(path: Path, count: int = 1) -> None:
    """Leave off the last bytes of a file."""
    os.truncate(path, path.stat().st_size - count)


def safetensors(size: int = 8) -> bytes:
    tensor = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "weight": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def trainer(out: Path, step: int) -> Path:
    """Write what the Trainer of transformers does."""
    folder = out / f"checkpoint-{step}"
    file(folder / "model.safetensors", safetensors())
    file(folder / "optimizer.pt")
    file(folder / "rng_state.pth")
    file(folder / "config.json", "{}")
    file(folder / "trainer_state.json", json.dumps({"global_step": step}))
    return folder


def zero(out: Path, step: int, ranks: int = 2) -> Path:
    """Write what DeepSpeed does."""
    folder = out / f"global_step{step}"
    file(folder / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        file(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    file(out / "latest", folder.name)
    return folder


def tensorflow(out: Path, step: int, shards: int = 2) -> Path:
    """Write what tf.train.Checkpoint does."""
    for shard in range(shards):
        file(out / f"ckpt-{step}.data-{shard:05}-of-{shards:05}", "tensors")
    return file(out / f"ckpt-{step}.index", b"table" + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb")


def distributed(folder: Path, ranks: int = 2) -> Path:
    """Write what torch.distributed.checkpoint does."""
    names = [f"__{rank}_0.distcp" for rank in range(ranks)]
    for name in names:
        file(folder / name, "tensors")
    file(folder / ".metadata", pickle.dumps(names))
    return folder


def test_a_half_checkpoint_is_passed_over(host: Host, out: Path) -> None:
    """A kill during a save must not make every restart fail (B94)."""
    whole = trainer(out, 10)
    file(out / "checkpoint-20" / "model.safetensors", safetensors())
    offer = host.call("offer", checkpoint_dir=str(out))
    assert offer["checkpoint"] == {
        "path": str(whole),
        "step": 10,
        "time": max(path.stat().st_mtime for path in whole.iterdir()),
        "layout": "Hugging Face",
    }
    assert offer["checkpoints_passed_over"] == [
        {"path": str(out / "checkpoint-20"), "why": "has no trainer_state.json"}
    ]


def test_steps_are_numbers(out: Path) -> None:
    """Sorted as text, 20 would come after 100 (B94)."""
    for step in (100, 20, 3):
        trainer(out, step)
    assert newest(out) == "checkpoint-100"


@pytest.mark.parametrize("layout", [trainer, zero, tensorflow])
def test_a_whole_one_is_found(out: Path, layout: Any) -> None:
    layout(out, 5)
    found, passed_over = look(out)
    assert found
    assert (found["step"], passed_over) == (5, {})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("trainer_state.json", "its trainer_state.json is cut short"),
        ("model.safetensors", "its model.safetensors has"),
        ("optimizer.pt", "its optimizer.pt is cut short"),
    ],
)
def test_a_trainers_file_may_be_cut_short(out: Path, name: str, why: str) -> None:
    cut(trainer(out, 5) / name)
    assert flaw(out).startswith(why)


def test_a_trainers_weights_may_be_missing(out: Path) -> None:
    (trainer(out, 5) / "model.safetensors").unlink()
    assert flaw(out) == "has no weights"


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "pytorch_model_fsdp.bin"])
def test_a_trainers_weights_may_be_pickled(out: Path, weights: str) -> None:
    folder = trainer(out, 5)
    (folder / "model.safetensors").unlink()
    file(folder / weights)
    assert newest(out) == "checkpoint-5"


def test_every_shard_of_an_index_must_be_there(out: Path) -> None:
    folder = trainer(out, 5)
    shards = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    index = {"weight_map": {f"layer.{each}": each for each in shards}}
    file(folder / "model.safetensors.index.json", json.dumps(index))
    (folder / "model.safetensors").rename(folder / shards[0])
    assert flaw(out) == f"has no {shards[1]} and 1 more"
    for shard in shards:
        file(folder / shard, safetensors())
    assert newest(out) == "checkpoint-5"
    cut(folder / shards[2])
    assert flaw(out).startswith(f"its {shards[2]} has")


def test_deepspeed_within_a_trainers_checkpoint_counts(out: Path) -> None:
    folder = trainer(out, 5)
    (folder / "model.safetensors").unlink()
    states = zero(folder, 5)
    assert newest(out) == "checkpoint-5"
    cut(next(states.glob("*optim_states.pt")))
    assert flaw(out).startswith("its folder global_step5 its bf16_zero_pp_rank_")


def test_fsdp_within_a_trainers_checkpoint_counts(out: Path) -> None:
    folder = trainer(out, 5)
    (folder / "model.safetensors").unlink()
    (distributed(folder / "pytorch_model_fsdp_0") / ".metadata").unlink()
    assert flaw(out).startswith("its folder pytorch_model_fsdp_0 has no .metadata")


def test_deepspeed_names_the_last_one_that_it_finished(out: Path) -> None:
    zero(out, 20)
    zero(out, 100)
    file(out / "latest", "global_step20")
    assert look(out)[0] == {**(look(out)[0] or {}), "step": 20, "layout": "DeepSpeed"}
    assert "names global_step20" in look(out)[1]["global_step100"]
    (out / "latest").unlink()
    assert "has no file latest" in look(out)[1]["global_step20"]


@pytest.mark.parametrize("lost", [0, 1])
def test_deepspeed_needs_the_states_of_every_rank(out: Path, lost: int) -> None:
    folder = zero(out, 5, ranks=3)
    (folder / f"bf16_zero_pp_rank_{lost}_mp_rank_00_optim_states.pt").unlink()
    assert flaw(out) == "has 2 of 3 files of optim states"


def test_a_folder_may_hold_deepspeed_for_one_step(out: Path) -> None:
    """Lightning saves so."""
    folder = out / "epoch=0-step=7.ckpt"
    zero(folder, 7).rename(folder / "checkpoint")
    file(folder / "latest", "checkpoint")
    found, _ = look(out)
    assert found
    assert (found["step"], found["layout"]) == (7, "DeepSpeed")
    file(folder / "latest", "")
    assert flaw(out) == "its file latest names nothing, which is not there"


def test_tensorflow_needs_every_shard_and_a_whole_index(out: Path) -> None:
    index = tensorflow(out, 20)
    tensorflow(out, 100)
    assert (look(out)[0] or {})["path"] == str(out / "ckpt-100")
    (out / "ckpt-100.data-00001-of-00002").unlink()
    assert look(out)[1] == {"ckpt-100": "has no ckpt-100.data-00001-of-00002"}
    cut(index)
    assert look(out)[1]["ckpt-20"] == "its index is cut short"


def test_distributed_checkpoints_need_every_file_of_their_metadata(out: Path) -> None:
    folder = distributed(out / "step-5")
    (folder / "__1_0.distcp").unlink()
    assert flaw(out) == "has no __1_0.distcp"
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    assert flaw(out) == "has no .metadata, which is written last"


def test_what_torch_saves_is_whole_or_not(out: Path, saved: Path) -> None:
    shutil.copytree(saved / "distributed", out / "step-2")
    assert newest(out) == "step-2"
    shutil.copy(saved / "new.pt", out / "step-3.pt")
    assert newest(out) == "step-3.pt"
    cut(out / "step-3.pt")
    assert look(out)[1] == {"step-3.pt": "is cut short: the end of the zip archive is missing"}
    cut(out / "step-2" / ".metadata")
    assert look(out)[1]["step-2"] == "its .metadata is cut short"


def test_the_script_of_the_docs_goes_on_where_it_was_killed(out: Path, torch_python: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    section = page.partition("\n## Checkpoints\n")[2]
    script = section.partition("```python\n")[2].partition("```")[0]
    env = {"DT_CHECKPOINT_DIR": str(out / "new"), "RANK": "0"}

    def train(epochs: int) -> str:
        command = [torch_python, "-c", f"{script}\n\ntrain({epochs})"]
        return subprocess.run(command, env=env, check=True, text=True, capture_output=True).stdout

    assert train(2) == "epoch 0\nepoch 1\n"
    file(out / "new" / "epoch-2.pt", b"PK\3\4")
    env["DT_RESUME_FROM"] = newest_checkpoint(env["DT_CHECKPOINT_DIR"])["checkpoint"]["path"]
    assert train(4) == "epoch 2\nepoch 3\n"


def test_torchs_old_format_does_not_show_its_end(out: Path, saved: Path) -> None:
    shutil.copy(saved / "old.pt", out / "step-3.pt")
    assert flaw(out).startswith("has torch's old format")


def test_a_pickle_ends_with_a_stop(out: Path) -> None:
    pickled = file(out / "step-3.pth", pickle.dumps({"weights": list(range(100))}))
    assert newest(out) == "step-3.pth"
    cut(pickled)
    assert flaw(out) == "is cut short: the end of the pickle is missing"


@pytest.mark.parametrize(("data", "why"), [("", "is empty"), (bytes(64), "is nothing that")])
def test_a_file_may_be_empty_or_zeros(out: Path, data: bytes, why: str) -> None:
    file(out / "step-3.pt", data)
    assert flaw(out).startswith(why)


@pytest.mark.parametrize("data", [b"", bytes(8), b"\xff" * 16, b"\2" + bytes(7) + b"[]"])
def test_a_header_of_safetensors_may_be_broken(out: Path, data: bytes) -> None:
    file(trainer(out, 5) / "model.safetensors", data)
    assert flaw(out) == "its model.safetensors has a broken header"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=400.ckpt", 400),
        ("epoch=3-step=400-v1.ckpt", 400),
        ("model_step_500_loss_0.25.pt", 500),
        ("iter0012.pth", 12),
        ("7.pt", 7),
        ("epoch=3-loss=0.25.ckpt", None),
        ("last.ckpt", None),
        ("last-v12.ckpt", None),
    ],
)
def test_a_name_may_tell_its_step(out: Path, name: str, step: int | None) -> None:
    file(out / name)
    assert (look(out)[0] or {})["step"] == step


@pytest.mark.parametrize(("age", "expected"), [(2, "last.ckpt"), (0, "epoch=9-step=1000.ckpt")])
def test_a_name_without_a_step_is_placed_by_time(out: Path, age: int, expected: str) -> None:
    for time, name in [(3, "epoch=8-step=900"), (1, "epoch=9-step=1000"), (age, "last")]:
        os.utime(file(out / f"{name}.ckpt"), (time, time))
    assert newest(out) == expected


def test_a_marker_makes_any_folder_complete(out: Path) -> None:
    file(out / "step-20" / "of my own")
    assert "no marker" in flaw(out)
    file(out / "step-20" / "COMPLETE", "")
    found, _ = look(out)
    assert found
    assert (found["step"], found["layout"]) == (20, "marked")


def test_where_markers_are_used_a_folder_without_is_not_complete(out: Path) -> None:
    file(trainer(out, 10) / ".complete", "")
    trainer(out, 20)
    found, passed_over = look(out)
    assert found
    assert found["step"] == 10
    assert "others there have one" in passed_over["checkpoint-20"]


@pytest.mark.parametrize("name", ["tmp-checkpoint-20", "checkpoint-20.tmp", ".checkpoint-20"])
def test_temporary_names_are_ignored(out: Path, name: str) -> None:
    trainer(out, 20).rename(out / name)
    assert look(out) == (None, {})


def test_a_link_to_nothing_spoils_no_whole_checkpoint(out: Path) -> None:
    (trainer(out, 10) / "tokenizer.json").symlink_to("nowhere")
    assert newest(out) == "checkpoint-10"


def test_other_files_and_folders_are_ignored(out: Path) -> None:
    file(out / "runs" / "events.out.tfevents.1")
    file(out / "README.md")
    file(out / "training_args.bin")
    (out / "gone.pt").symlink_to("nowhere")
    assert look(out) == (None, {})


def test_a_folder_that_is_not_there_yet_has_none(out: Path) -> None:
    assert look(out / "later") == (None, {})


def test_a_file_in_place_of_the_folder_is_said(out: Path) -> None:
    assert flaw(file(out / "file")) == "cannot be read: Not a directory"


@pytest.mark.parametrize("folder", ["run/out", "~/run/out"])
def test_a_folder_is_found_from_home(
    out: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainer(out / "run" / "out", 10)
    monkeypatch.setenv("HOME", str(out))
    assert newest_checkpoint(folder)["checkpoint"]["path"] == str(whole)


def test_an_offer_looks_for_none_unasked(host: Host) -> None:
    assert "checkpoint" not in host.call("offer")


def test_of_many_flawed_ones_the_newest_are_named(out: Path) -> None:
    for step in range(30):
        (out / f"checkpoint-{step}").mkdir()
    passed_over = look(out)[1]
    assert list(passed_over) == [f"checkpoint-{step}" for step in range(29, 19, -1)]
