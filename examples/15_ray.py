"""Train one network on a Ray cluster, whose workers start again if one of them is killed.

    pip install 'ray[train]'
    python examples/15_ray.py FOLDER     # on a disk that all workers share

What to learn: each worker of Ray Train takes one stage, in the process group that Ray has made,
and its function is the script of one process. After each epoch the stages write a checkpoint,
and Ray hears of it. If a worker is lost, Ray starts all of them again, and they resume from it.
"""

import sys
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
    folder = str(Path(sys.argv[1]).resolve())  # workers have other working directories
    # A cluster on this machine; on one that exists, `ray.init()`.
    ray.init(
        num_cpus=2, object_store_memory=2**27, include_dashboard=False, log_to_driver=False
    )
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=3)),
    )
    metrics = trainer.fit().metrics
    print(f"test error {metrics['error']:.1%} after epoch {metrics['epoch']}")

# It prints:
#
#   test error 5.3% after epoch 2
