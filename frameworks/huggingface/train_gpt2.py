"""Teach a tiny GPT-2 to count, with the SFTTrainer of TRL."""

import json
import os
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer

MODEL = "tiny-gpt2"


def main() -> None:
    """Train, and let rank 0 tell how the model goes on, and whether all ranks agree."""
    options = SFTConfig(
        output_dir="outputs",
        num_train_epochs=6,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        max_length=16,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    set_seed(0)
    with options.main_process_first():
        counting = load_dataset("json", data_files="counting.jsonl", split="train")
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL)),
        args=options,
        train_dataset=counting,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.train()
    tell(trainer)


def tell(trainer: SFTTrainer) -> None:
    """Let rank 0 leave the result."""
    weights = sum(weight.detach().double().sum() for weight in trainer.model.parameters())
    sums = trainer.accelerator.gather(weights.reshape(1)).tolist()
    if trainer.is_world_process_zero():
        told = {
            "said": go_on(trainer, "three four five"),
            "checksums": sums,
            "world_size": trainer.args.world_size,
        }
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps(told))


def go_on(trainer: SFTTrainer, text: str) -> str:
    """Return what the model says after a text."""
    tokenizer = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    given = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
    made = model.generate(given, max_new_tokens=2, do_sample=False)
    return tokenizer.decode(made[0][given.shape[1] :])


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort Python's own way out: pytorch #190489
