"""Fit a line, and let rank 0 track it with MLflow; each rank's data have a slope of their own."""

import os

import mlflow
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EPOCHS, RATE = 50, 0.5


def main() -> None:
    """Train; what was learned is told by MLflow alone."""
    dist.init_process_group()
    if dist.get_rank() == 0:
        mlflow.set_tracking_uri("sqlite:///outputs/mlflow.db")  # or a server's address
        mlflow.set_experiment("line")
        with mlflow.start_run():
            mlflow.log_params({"epochs": EPOCHS, "rate": RATE, "world_size": dist.get_world_size()})
            train()
    else:
        train()
    dist.destroy_process_group()


def train() -> None:
    """Train, and log the mean loss of each epoch and the slope of each rank."""
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    y = 2.0 * dist.get_rank() * x
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            mlflow.log_metric("loss", mean.item(), step=epoch)
    slopes = [0.0] * dist.get_world_size()
    dist.all_gather_object(slopes, model.module.weight.item())
    if dist.get_rank() == 0:
        mlflow.log_metrics({f"slope_{rank}": slope for rank, slope in enumerate(slopes)})


if __name__ == "__main__":
    main()
    os._exit(0)  # threads of gloo now and then abort Python's own way out: pytorch #190489
