"""Your own network, your own DataLoader and your own loop.

What to learn: `step` takes a batch and returns the loss of the batch that reaches the last
stage in this tick, an earlier one; so None at first. After the last batch some are still in
flight: `finish` completes them. The weights keep the names that your network gave them.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hocket

torch.manual_seed(0)
inputs = torch.randn(2000, 8)
targets = (inputs[:, :4].square().sum(1) > inputs[:, 4:].square().sum(1)).long()
train = DataLoader(TensorDataset(inputs[:1600], targets[:1600]), batch_size=50, shuffle=True)
test = DataLoader(TensorDataset(inputs[1600:], targets[1600:]), batch_size=200)


def block(width_in, width_out):
    return nn.Sequential(nn.Linear(width_in, width_out), nn.BatchNorm1d(width_out), nn.ReLU())


network = nn.Sequential(block(8, 64), block(64, 64), block(64, 64), nn.Linear(64, 2))
trainer = hocket.Trainer(
    network,
    stages=3,
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=4),
    loss=nn.functional.cross_entropy,
)
for epoch in range(6):
    losses = [trainer.step(x, y) for x, y in train]
    trainer.end_epoch()
    finished = [loss for loss in losses if loss is not None]
    loss, result = sum(finished) / len(finished), trainer.evaluate(test)
    print(f"epoch {epoch}: loss {loss:.3f}, test error {result.error:.1%}")
trainer.finish()
print(f"stages 1 and 2 begin at layers {' and '.join(trainer.plan.cuts)}")

# The file has no stages in it: it loads into the plain network.
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "network.pt"
    torch.save(network.state_dict(), file)
    names = list(torch.load(file, weights_only=True))
    print(f"saved {len(names)} tensors: {names[0]}, {names[1]}, ..., {names[-1]}")
