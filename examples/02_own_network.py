"""Your own network, your own DataLoader and your own loop.

What to learn: `step` takes a batch and returns the loss of the batch that reaches the last
stage in this tick, an earlier one; so None at first. After the last batch some are still in
flight: `finish` completes them. The weights keep the names that your network gave them.
"""

import hocket
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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

weights = network.state_dict()  # without stages: the file loads into the plain network
torch.save(weights, "network.pt")
print(f"saved {len(weights)} tensors: {', '.join(list(weights)[:2])}, ...")

# It prints:
#
#   epoch 0: loss 0.541, test error 17.2%
#   epoch 1: loss 0.534, test error 17.8%
#   epoch 2: loss 0.339, test error 15.0%
#   epoch 3: loss 0.365, test error 15.5%
#   epoch 4: loss 0.282, test error 8.2%
#   epoch 5: loss 0.212, test error 5.5%
#   stages 1 and 2 begin at layers 1.0 and 2.0
#   saved 23 tensors: 0.0.weight, 0.0.bias, ...
