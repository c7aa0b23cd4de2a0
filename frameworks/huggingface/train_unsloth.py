"""Teach a tiny GPT-2 to count, with Unsloth."""

import os

from unsloth import FastLanguageModel  # before all that it changes

# isort: split
import torch
from datasets import load_dataset
from train_gpt2 import tell
from trl import SFTConfig, SFTTrainer


def main() -> None:
    """Train, and let rank 0 tell how the model goes on, and whether all ranks agree."""
    options = SFTConfig(
        output_dir="outputs",
        num_train_epochs=6,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        max_length=16,
        gradient_checkpointing=False,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model, tokenizer = FastLanguageModel.from_pretrained(
        "random-gpt2",
        max_seq_length=16,
        dtype=torch.float32,
        full_finetuning=True,
        use_gradient_checkpointing=False,
    )
    with options.main_process_first():
        counting = load_dataset("json", data_files="counting.jsonl", split="train")
    trainer = SFTTrainer(
        model=model, args=options, train_dataset=counting, processing_class=tokenizer
    )
    trainer.train()
    tell(trainer)


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort Python's own way out: pytorch #190489
