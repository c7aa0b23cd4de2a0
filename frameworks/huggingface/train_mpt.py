"""Teach a tiny MPT to count, as LLM Foundry's own `scripts/train/train.py` does."""

import json
import os
from pathlib import Path

import torch
from composer import Trainer
from composer.utils import dist
from llmfoundry.command_utils import train_from_yaml


def main() -> None:
    """Train what the file says, and let rank 0 tell how the model goes on."""
    tell(train_from_yaml("mpt.yaml"))


def tell(trainer: Trainer) -> None:
    """Let rank 0 leave the result."""
    weights = sum(weight.detach().double().sum() for weight in trainer.state.model.parameters())
    sums = dist.all_gather_object(float(weights))
    if dist.get_global_rank() == 0:
        told = {
            "said": go_on(trainer, "three four five"),
            "checksums": sums,
            "world_size": dist.get_world_size(),
        }
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps(told))


def go_on(trainer: Trainer, text: str) -> str:
    """Return what the model says after a text."""
    model = getattr(trainer.state.model, "module", trainer.state.model).eval()
    tokens = model.tokenizer(text, return_tensors="pt")["input_ids"]
    given = tokens.shape[1]
    with torch.no_grad():
        for _ in range(2):
            batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
            said = model(batch).logits[:, -1:].argmax(dim=-1)
            tokens = torch.cat([tokens, said], dim=1)
    return model.tokenizer.decode(tokens[0, given:])


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort Python's own way out: pytorch #190489
