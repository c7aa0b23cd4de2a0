"""Fit a line with Lightning; each rank's data have a slope of their own."""

import json
import os
import sys
from pathlib import Path

import lightning
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    """A line through the origin."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def train_dataloader(self) -> DataLoader:
        """Return the data of this rank."""
        x = torch.linspace(-1, 1, 64).unsqueeze(1)
        return DataLoader(TensorDataset(x, 2.0 * self.global_rank * x), batch_size=64)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss."""
        x, y = batch
        return mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return what changes the weight."""
        return torch.optim.SGD(self.parameters(), lr=0.5)


def main() -> None:
    """Train, and let rank 0 tell what every rank has learned."""
    trainer = lightning.Trainer(
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),  # on a host with GPUs "auto" does
        accelerator="auto",
        strategy="ddp",
        max_epochs=50,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Line()
    trainer.fit(model)
    slopes = model.all_gather(model.layer.weight.detach()).flatten().tolist()
    if trainer.is_global_zero:
        told = {
            "slopes": slopes,
            "environment": type(trainer.strategy.cluster_environment).__name__,
        }
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
    if "mpi4py.MPI" in sys.modules:  # under mpirun, which Lightning has found by itself
        sys.modules["mpi4py.MPI"].Finalize()
    os._exit(0)  # threads of gloo now and then abort Python's own way out: pytorch #190489
