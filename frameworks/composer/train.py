"""Fit a line with Composer; each rank's data have a slope of their own."""

import json
import os
from pathlib import Path

import torch
from composer import ComposerModel, Trainer
from composer.optim import DecoupledSGDW
from composer.utils import dist
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


class Line(ComposerModel):
    """A line through the origin."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return what the line is at these places."""
        return self.layer(batch[0])

    def loss(self, outputs: torch.Tensor, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return how far the line is from the data."""
        return mse_loss(outputs, batch[1])


def main() -> None:
    """Train, and let rank 0 tell what every rank has learned."""
    model = Line()
    trainer = Trainer(
        model=model,
        train_dataloader=data(),
        optimizers=DecoupledSGDW(model.parameters(), lr=0.5),
        max_duration="50ep",
        progress_bar=False,
    )
    trainer.fit()
    slopes = dist.all_gather_object(model.layer.weight.item())
    if dist.get_global_rank() == 0:
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps({"slopes": slopes}))
    trainer.close()


def data() -> DataLoader:
    """Return points that a sampler deals to the ranks in turn: rank r gets those of slope 2 r."""
    ranks = dist.get_world_size()
    x = torch.linspace(-1, 1, 64).repeat_interleave(ranks).unsqueeze(1)
    slopes = 2.0 * torch.arange(ranks).repeat(64).unsqueeze(1)
    points = TensorDataset(x, slopes * x)
    return DataLoader(points, batch_size=64, sampler=dist.get_sampler(points, shuffle=False))


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort Python's own way out: pytorch #190489
