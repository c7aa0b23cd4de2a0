"""Fit a line with Accelerate; each rank's data have a slope of their own."""

import json
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss


def main() -> None:
    """Train, and let rank 0 tell what every rank has learned."""
    accelerator = Accelerator()
    slopes = accelerator.gather(train(accelerator)).tolist()
    if accelerator.is_main_process:
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps({"slopes": slopes}))
    accelerator.end_training()


def train(accelerator: Accelerator) -> torch.Tensor:
    """Return the slope that was learned."""
    x = torch.linspace(-1, 1, 64, device=accelerator.device).unsqueeze(1)
    y = 2.0 * accelerator.process_index * x
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    for _ in range(50):
        optimizer.zero_grad()
        accelerator.backward(mse_loss(model(x), y))
        optimizer.step()
    return accelerator.unwrap_model(model).weight.detach().flatten()


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort Python's own way out: pytorch #190489
