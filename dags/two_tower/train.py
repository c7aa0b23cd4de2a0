"""Teach two towers, with Lightning, who likes what, from data that MosaicML Streaming reads."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import lightning
import torch
from streaming import StreamingDataLoader, StreamingDataset
from torch.nn.functional import binary_cross_entropy_with_logits

KINDS = 32  # of users, and of items
BATCH = 20


class TwoTowers(lightning.LightningModule):
    """A tower for users, one for items: they stand close where a user likes an item."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.users = tower()
        self.items = tower()
        self.seen: list[int] = []  # in the last epoch, by this rank
        self.accuracy = 0.0  # on the unseen likes that fall to this rank
        self.losses: list[float] = []  # of each epoch, over all ranks

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return how much each user likes each item: above 0 for yes."""
        return (self.users(batch["user"]) * self.items(batch["item"])).sum(dim=1)

    def train_dataloader(self) -> StreamingDataLoader:
        """Return the data, of which Streaming deals each rank its share."""
        return read("likes/train", shuffle=True)

    def on_train_epoch_start(self) -> None:
        """Forget what was seen before."""
        self.seen.clear()

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss."""
        self.seen += batch["id"].tolist()
        loss = binary_cross_entropy_with_logits(self(batch), batch["liked"].float())
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=BATCH)
        return loss

    def on_train_epoch_end(self) -> None:
        """Write the loss down for the task's metrics."""
        loss = float(self.trainer.callback_metrics["loss"])
        self.losses.append(round(loss, 6))
        if self.global_rank == 0:
            told = {"epoch": self.current_epoch + 1, "loss": loss}
            with Path(os.environ.get("DT_METRICS_FILE", os.devnull)).open("a") as metrics:
                metrics.write(json.dumps(told) + "\n")

    def on_train_end(self) -> None:
        """Judge by unseen likes, now: Lightning takes WORLD_SIZE away when it has trained."""
        right = []
        for batch in read("likes/unseen"):
            batch = self.transfer_batch_to_device(batch, self.device, 0)
            right.append((self(batch) > 0) == (batch["liked"] > 0))
        self.accuracy = float(torch.cat(right).double().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return what changes the weights."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def tower() -> torch.nn.Module:
    """Return a tower of two floors."""
    return torch.nn.Sequential(
        torch.nn.Embedding(KINDS, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)
    )


def read(folder: str, *, shuffle: bool = False) -> StreamingDataLoader:
    """Return this rank's share of a folder."""
    likes = StreamingDataset(local=folder, shuffle=shuffle, batch_size=BATCH)
    return StreamingDataLoader(likes, batch_size=BATCH)


def main() -> None:
    """Train, and let rank 0 leave the model, how well it knows unseen likes, and who saw what."""
    options = arguments()
    lightning.seed_everything(options.seed)  # every rank starts from the same weights
    trainer = lightning.Trainer(
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        accelerator="auto",
        strategy="ddp",
        max_epochs=options.epochs,
        use_distributed_sampler=False,  # Streaming has dealt the samples
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = TwoTowers(options.lr)
    trainer.fit(model)
    told = tell(model)
    if trainer.is_global_zero:
        torch.save(model.state_dict(), Path(os.environ.get("DT_OUTPUT_DIR", "."), "model.pt"))
        Path(os.environ.get("DT_RESULT_FILE", "result.json")).write_text(json.dumps(told))


def arguments() -> argparse.Namespace:
    """Return the options that the task passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def tell(model: TwoTowers) -> dict[str, object]:
    """Return what all ranks have learned and seen."""
    weights = sum(weight.detach().double().sum() for weight in model.parameters())
    own = {"checksum": float(weights), "seen": model.seen, "accuracy": model.accuracy}
    ranks: list = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, own)
    return {
        "world_size": len(ranks),
        "loss": model.losses,
        "accuracy": sum(rank["accuracy"] for rank in ranks) / len(ranks),
        "checksums": [rank["checksum"] for rank in ranks],
        "seen": [rank["seen"] for rank in ranks],
    }


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort Python's own way out (pytorch/pytorch#190489)
