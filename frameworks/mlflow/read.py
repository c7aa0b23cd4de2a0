"""Tell what MLflow's store knows of the one run in it: a task that runs after the training."""

import json
import sys

from mlflow import MlflowClient


def main(store: str) -> None:
    """Print the run as JSON."""
    client = MlflowClient(f"sqlite:///{store}")
    experiment = client.get_experiment_by_name("line")
    (run,) = client.search_runs([experiment.experiment_id])
    metrics = run.data.metrics
    losses = client.get_metric_history(run.info.run_id, "loss")
    told = {
        "status": run.info.status,
        "params": run.data.params,
        "losses": [loss.value for loss in losses],
        "slopes": [metrics[name] for name in sorted(metrics) if name.startswith("slope_")],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
