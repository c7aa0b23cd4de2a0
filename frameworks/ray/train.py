"""Tell digits apart with Ray Train; every worker has the images of its own share."""

import json
import os
from pathlib import Path

import ray
import torch
from ray.train import ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import distributed, nn


def main() -> None:
    """Train on all CPUs of the cluster, and tell what the first worker returns."""
    ray.init()
    workers = int(ray.cluster_resources()["CPU"])
    trainer = TorchTrainer(train, scaling_config=ScalingConfig(num_workers=workers))
    result = trainer.fit()
    Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps(result.return_value))


def train() -> dict[str, object]:
    """Train on one worker, and return how well the model does on images that nobody has seen."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank, workers = get_context().get_world_rank(), get_context().get_world_size()
    images, digits = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32)
    digits = torch.tensor(digits)
    own = slice(rank, 1400, workers)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[own]), digits[own]).backward()
        optimizer.step()
    with torch.no_grad():
        right = net(images[1400:]).argmax(dim=1) == digits[1400:]
    total = sum(float(weight.detach().double().sum()) for weight in net.parameters())
    sums: list[object] = [None] * workers
    distributed.all_gather_object(sums, total)
    return {"world_size": workers, "checksums": sums, "accuracy": float(right.float().mean())}


if __name__ == "__main__":
    main()
