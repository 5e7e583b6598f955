"""Train one network on a Ray cluster, whose workers are started again when one is killed.

    pip install 'ray[train]'
    python examples/15_ray.py FOLDER     # on a disk that all workers share

What to learn: each worker of Ray Train takes one stage, in the process group that Ray has made,
and its function is the script of one process. After each epoch the stages write a checkpoint,
and `ray.train.report` passes it on. If a worker is lost, Ray starts all of them again, and they
resume from the newest checkpoint, to the weights of a training that never stopped.
"""

import sys
import tempfile
from pathlib import Path

import hocket
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    """Train one stage in a worker of Ray."""
    torch.set_num_threads(1)  # equal bits need equal numbers of threads
    torch.manual_seed(0)
    digits = hocket.data.load("digits", batch_size=32)
    network = hocket.zoo.mlp(in_features=64, hidden=[64, 64], num_classes=10)
    folder = Path(config["folder"])

    def report(epoch):
        trainer.save(folder)
        newest = max(folder.glob("tick-*"))
        ray.train.report(
            {"epoch": epoch.number, "error": epoch.evaluation.error},
            checkpoint=Checkpoint.from_directory(newest) if trainer.is_main_process else None,
        )

    with hocket.Trainer(
        network,
        stages=2,
        method=hocket.FDG(),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
        resumable=True,
    ) as trainer:
        if any(folder.glob("tick-*")):  # an earlier start has left one
            trainer.resume(folder)
        trainer.fit(digits.train, digits.test, epochs=3, progress=False, on_epoch=report)
        if trainer.is_main_process:
            torch.save(network.state_dict(), folder / "network.pt")


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    ray.init(num_cpus=2, include_dashboard=False)  # on a cluster: no arguments
    run = RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=3))
    workers = ScalingConfig(num_workers=2)
    config = {"folder": folder}
    result = TorchTrainer(
        train, train_loop_config=config, scaling_config=workers, run_config=run
    ).fit()
    print(f"test error {result.metrics['error']:.1%} after epoch {result.metrics['epoch']}")

# It prints:
#
#   test error 20.6% after epoch 2
