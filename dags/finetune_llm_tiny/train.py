"""Teach a tiny language model to count, with the SFTTrainer of TRL.

By hand, without Airflow: ``torchrun --nproc-per-node 2 train.py``
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

MODEL = "tiny-gpt2"


class Metrics(TrainerCallback):
    """Writes losses down for the task's metrics."""

    def on_log(
        self, args: SFTConfig, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Add the newest loss."""
        told = {name: state.log_history[-1].get(name) for name in ("epoch", "loss")}
        if state.is_world_process_zero and told["loss"] is not None:
            with Path(os.environ.get("DT_METRICS_FILE", os.devnull)).open("a") as metrics:
                metrics.write(json.dumps(told) + "\n")


def main() -> None:
    """Train, and let rank 0 leave the model and what it says."""
    given = arguments()
    options = SFTConfig(
        output_dir="checkpoints",
        num_train_epochs=given.epochs,
        per_device_train_batch_size=4,
        learning_rate=given.lr,
        seed=given.seed,
        max_length=16,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    set_seed(given.seed)  # every rank starts from the same weights
    with options.main_process_first():  # of each host, which makes the cache that the others read
        texts = load_dataset("json", data_files="train.jsonl", split="train")
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL)),
        args=options,
        train_dataset=texts,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        callbacks=[Metrics()],
    )
    trainer.train()
    trainer.save_model(str(Path(os.environ.get("DT_OUTPUT_DIR", "outputs"), "model")))
    tell(trainer)


def arguments() -> argparse.Namespace:
    """Return the options that the task passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def tell(trainer: SFTTrainer) -> None:
    """Let rank 0 leave what the model answers, and whether all ranks hold the same one."""
    weights = sum(weight.detach().double().sum() for weight in trainer.model.parameters())
    sums = trainer.accelerator.gather(weights.reshape(1)).tolist()
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        told = {"loss": losses, "answers": answers(trainer), "checksums": sums}
        Path(os.environ.get("DT_RESULT_FILE", "result.json")).write_text(json.dumps(told))


def answers(trainer: SFTTrainer) -> list[str]:
    """Return the word with which the model goes on after each text that it has not seen."""
    tokenizer = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    said = []
    for text in json.loads(Path("questions.json").read_text()):
        given = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
        made = model.generate(given, max_new_tokens=1, do_sample=False)
        said.append(tokenizer.decode(made[0][given.shape[1] :]))
    return said


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort Python's own way out (pytorch/pytorch#190489)
